// Where each field lies, as schema/*.capnp has it. Written by layout.py: change the schema, not this file.
//
// A number is [kind, place in bytes (a bool: in bits), default unless 0], a pointer [kind, index, struct of a list].

export const STRUCTS = {
  Label: {
    words: 2,
    pointers: 2,
    fields: {
      name: ["text", 0],
      which: ["u16", 0],
      text: ["text", 1],
      int: ["i64", 8],
      float: ["f64", 8],
      bool: ["bool", 64],
    },
  },
  Pair: {
    words: 0,
    pointers: 2,
    fields: {
      routingKey: ["text", 0],
      labels: ["structs", 1, "Label"],
    },
  },
  Routes: {
    words: 0,
    pointers: 1,
    fields: {
      pairs: ["structs", 0, "Pair"],
    },
  },
  AddBranch: {
    words: 3,
    pointers: 0,
    fields: {
      producerId: ["i64", 0],
      epoch: ["u32", 8],
      branch: ["i64", 16],
    },
  },
  Administer: {
    words: 0,
    pointers: 2,
    fields: {
      verb: ["text", 0],
      arguments: ["text", 1],
    },
  },
  Administered: {
    words: 0,
    pointers: 1,
    fields: {
      result: ["text", 0],
    },
  },
  Assigned: {
    words: 1,
    pointers: 2,
    fields: {
      subscription: ["u32", 0],
      epoch: ["u32", 4],
      partitions: ["i32s", 0],
      revoked: ["i32s", 1],
    },
  },
  Commit: {
    words: 3,
    pointers: 1,
    fields: {
      subscription: ["u32", 0],
      partition: ["i32", 4],
      epoch: ["u32", 8],
      offset: ["i64", 16],
      text: ["text", 0],
    },
  },
  Credit: {
    words: 1,
    pointers: 0,
    fields: {
      subscription: ["u32", 0],
      records: ["u32", 4],
    },
  },
  Deliver: {
    words: 5,
    pointers: 0,
    fields: {
      subscription: ["u32", 0],
      partition: ["i32", 4],
      deliveryId: ["u64", 8],
      attempt: ["u16", 16],
      passedTo: ["i64", 24],
      phase: ["u16", 18],
      settledBefore: ["i64", 32],
    },
  },
  Describe: {
    words: 0,
    pointers: 1,
    fields: {
      topics: ["texts", 0],
    },
  },
  Description: {
    words: 0,
    pointers: 3,
    fields: {
      broker: ["text", 0],
      nodes: ["structs", 1, "Node"],
      topics: ["structs", 2, "TopicInfo"],
    },
  },
  EndTransaction: {
    words: 4,
    pointers: 1,
    fields: {
      producerId: ["i64", 0],
      epoch: ["u32", 8],
      number: ["u64", 16],
      isCommit: ["bool", 96],
      branches: ["i64s", 0],
      sequence: ["u64", 24],
    },
  },
  Ended: {
    words: 1,
    pointers: 2,
    fields: {
      subscription: ["u32", 0],
      code: ["text", 0],
      text: ["text", 1],
    },
  },
  Failed: {
    words: 2,
    pointers: 2,
    fields: {
      code: ["text", 0],
      text: ["text", 1],
      retriable: ["bool", 0],
      partition: ["i32", 4],
      offset: ["i64", 8],
    },
  },
  Fetch: {
    words: 6,
    pointers: 3,
    fields: {
      topic: ["text", 0],
      partition: ["i32", 0],
      offset: ["i64", 8],
      bytesMin: ["u32", 4],
      bytesMax: ["u32", 16],
      waitMaxMs: ["u32", 20],
      where: ["text", 1],
      unsettled: ["bool", 192],
      leaderEpoch: ["i32", 28],
      topicIdHigh: ["u64", 32],
      topicIdLow: ["u64", 40],
      formats: ["u32s", 2],
      uncommitted: ["bool", 193],
    },
  },
  Fetched: {
    words: 4,
    pointers: 0,
    fields: {
      startOffset: ["i64", 0],
      highWatermark: ["i64", 8],
      nextOffset: ["i64", 16],
      leaderEpoch: ["i32", 24],
    },
  },
  FindOffset: {
    words: 2,
    pointers: 1,
    fields: {
      topic: ["text", 0],
      partition: ["i32", 0],
      timestampMs: ["i64", 8],
      place: ["u16", 4],
    },
  },
  FoundOffset: {
    words: 1,
    pointers: 0,
    fields: {
      offset: ["i64", 0],
    },
  },
  Goodbye: {
    words: 0,
    pointers: 1,
    fields: {
      reason: ["text", 0],
    },
  },
  Heartbeat: {
    words: 1,
    pointers: 0,
    fields: {
      subscription: ["u32", 0],
      epoch: ["u32", 4],
    },
  },
  Hello: {
    words: 1,
    pointers: 2,
    fields: {
      versionMin: ["u16", 0],
      versionMax: ["u16", 2],
      features: ["texts", 0],
      client: ["text", 1],
    },
  },
  LeaseEnded: {
    words: 2,
    pointers: 0,
    fields: {
      subscription: ["u32", 0],
      partition: ["i32", 4],
      deliveryId: ["u64", 8],
    },
  },
  Node: {
    words: 1,
    pointers: 1,
    fields: {
      id: ["u32", 0],
      address: ["text", 0],
    },
  },
  OpenTransactions: {
    words: 3,
    pointers: 1,
    fields: {
      name: ["text", 0],
      timeoutMs: ["u32", 0],
      producerId: ["i64", 8],
      epoch: ["u32", 4],
      opening: ["u64", 16],
    },
  },
  OpenedTransactions: {
    words: 3,
    pointers: 0,
    fields: {
      producerId: ["i64", 0],
      epoch: ["u32", 8],
      number: ["u64", 16],
    },
  },
  PartitionInfo: {
    words: 3,
    pointers: 0,
    fields: {
      leader: ["u32", 0],
      startOffset: ["i64", 8],
      highWatermark: ["i64", 16],
    },
  },
  Placement: {
    words: 5,
    pointers: 2,
    fields: {
      partition: ["i32", 0],
      baseOffset: ["i64", 8],
      copies: ["u32", 4],
      returned: ["u32s", 0],
      leaderEpoch: ["i32", 16],
      topicIdHigh: ["u64", 24],
      topicIdLow: ["u64", 32],
      refused: ["structs", 1, "RefusedRecords"],
    },
  },
  Publish: {
    words: 1,
    pointers: 1,
    fields: {
      target: ["text", 0],
      toExchange: ["bool", 0],
      acks: ["u16", 2],
      partition: ["i32", 4, -1],
      mandatory: ["bool", 1],
    },
  },
  Published: {
    words: 0,
    pointers: 1,
    fields: {
      placements: ["structs", 0, "Placement"],
    },
  },
  Pull: {
    words: 4,
    pointers: 0,
    fields: {
      subscription: ["u32", 0],
      recordsMax: ["u32", 4],
      waitMaxMs: ["u32", 8],
      placed: ["bool", 96],
      partition: ["i32", 16],
      start: ["i64", 24],
    },
  },
  Refusal: {
    words: 1,
    pointers: 2,
    fields: {
      entry: ["u32", 0],
      code: ["text", 0],
      text: ["text", 1],
    },
  },
  RefusedRecords: {
    words: 0,
    pointers: 3,
    fields: {
      code: ["text", 0],
      text: ["text", 1],
      records: ["u32s", 2],
    },
  },
  Resolve: {
    words: 2,
    pointers: 0,
    fields: {
      subscription: ["u32", 0],
      partition: ["i32", 4],
      deliveryId: ["u64", 8],
    },
  },
  Resolved: {
    words: 1,
    pointers: 0,
    fields: {
      isDecided: ["bool", 0],
    },
  },
  Seek: {
    words: 3,
    pointers: 0,
    fields: {
      subscription: ["u32", 0],
      partition: ["i32", 4],
      offset: ["i64", 8],
      isPaused: ["bool", 128],
    },
  },
  Settle: {
    words: 1,
    pointers: 1,
    fields: {
      subscription: ["u32", 0],
      entries: ["structs", 0, "Settlement"],
    },
  },
  SettleInTransaction: {
    words: 3,
    pointers: 1,
    fields: {
      producerId: ["i64", 0],
      epoch: ["u32", 8],
      number: ["u64", 16],
      subscription: ["u32", 12],
      entries: ["structs", 0, "Settlement"],
    },
  },
  Settled: {
    words: 0,
    pointers: 1,
    fields: {
      refused: ["structs", 0, "Refusal"],
    },
  },
  Settlement: {
    words: 5,
    pointers: 0,
    fields: {
      partition: ["i32", 0],
      deliveryId: ["u64", 8],
      first: ["i64", 16],
      end: ["i64", 24],
      verdict: ["u16", 4],
      ms: ["u32", 32],
    },
  },
  Subscribe: {
    words: 5,
    pointers: 8,
    fields: {
      topic: ["text", 0],
      group: ["text", 1],
      credit: ["u32", 0],
      start: ["i64", 8, -2],
      partitions: ["i32s", 2],
      starts: ["i64s", 3],
      where: ["text", 4],
      member: ["text", 5],
      sessionMs: ["u32", 4],
      isStatic: ["bool", 128],
      leaderEpoch: ["i32", 20],
      topicIdHigh: ["u64", 24],
      topicIdLow: ["u64", 32],
      shared: ["text", 6],
      formats: ["u32s", 7],
      twoPhase: ["bool", 129],
      uncommitted: ["bool", 130],
    },
  },
  Subscribed: {
    words: 4,
    pointers: 0,
    fields: {
      subscription: ["u32", 0],
      kind: ["u16", 4],
      leaseMs: ["u32", 8],
      leaderEpoch: ["i32", 12],
      topicIdHigh: ["u64", 16],
      topicIdLow: ["u64", 24],
    },
  },
  TopicInfo: {
    words: 3,
    pointers: 5,
    fields: {
      name: ["text", 0],
      kind: ["text", 1],
      partitions: ["structs", 2, "PartitionInfo"],
      delivery: ["text", 3],
      messageBytesMax: ["u32", 0],
      partitioner: ["text", 4],
      idHigh: ["u64", 8],
      idLow: ["u64", 16],
    },
  },
  Unsubscribe: {
    words: 1,
    pointers: 0,
    fields: {
      subscription: ["u32", 0],
    },
  },
  Welcome: {
    words: 5,
    pointers: 2,
    fields: {
      version: ["u16", 0],
      features: ["texts", 0],
      broker: ["text", 1],
      frameBytesMax: ["u32", 4],
      batchBytesMax: ["u32", 8],
      messageBytesMax: ["u32", 12],
      keepaliveMs: ["u32", 16],
      inflightMax: ["u32", 20],
      subscriptionsMax: ["u32", 24],
      producerId: ["i64", 32],
    },
  },
} as const;

/** The members of Frame by their number; null: without content. */
export const MEMBERS = [
  ["hello", "Hello"],
  ["welcome", "Welcome"],
  ["failed", "Failed"],
  ["ping", null],
  ["pong", null],
  ["goodbye", "Goodbye"],
  ["done", null],
  ["publish", "Publish"],
  ["published", "Published"],
  ["fetch", "Fetch"],
  ["fetched", "Fetched"],
  ["findOffset", "FindOffset"],
  ["foundOffset", "FoundOffset"],
  ["subscribe", "Subscribe"],
  ["subscribed", "Subscribed"],
  ["unsubscribe", "Unsubscribe"],
  ["credit", "Credit"],
  ["deliver", "Deliver"],
  ["pull", "Pull"],
  ["settle", "Settle"],
  ["settled", "Settled"],
  ["assigned", "Assigned"],
  ["describe", "Describe"],
  ["description", "Description"],
  ["administer", "Administer"],
  ["administered", "Administered"],
  ["ended", "Ended"],
  ["leaseEnded", "LeaseEnded"],
  ["heartbeat", "Heartbeat"],
  ["seek", "Seek"],
  ["commit", "Commit"],
  ["resolve", "Resolve"],
  ["resolved", "Resolved"],
  ["openTransactions", "OpenTransactions"],
  ["openedTransactions", "OpenedTransactions"],
  ["addBranch", "AddBranch"],
  ["settleInTransaction", "SettleInTransaction"],
  ["endTransaction", "EndTransaction"],
] as const;
