@0xc8a1f5b0de3f4467;
# linn's native protocol, version 1. See docs/reference/protocol.md.
#
# A connection carries Cap'n Proto messages in standard stream framing, both ways. Each is a Frame, except that the
# `batches` RecordBatch messages (batch.capnp) which a Frame announces follow it directly.

struct Frame {
  correlation @0 :UInt64;       # chosen by the client, echoed in the answer; 0: no answer wanted, or a push
  batches     @1 :UInt16;       # how many RecordBatch messages follow this one
  lane        @42 :UInt32;      # between brokers: the connection elsewhere for which this is sent; 0: the link itself

  union {
    # --- connection ---
    hello       @2  :Hello;         # client, first
    welcome     @3  :Welcome;       # broker's answer
    failed      @4  :Failed;        # broker's answer to a request that failed; correlation 0: about the connection
    ping        @5  :Void;          # either side
    pong        @6  :Void;
    goodbye     @7  :Goodbye;       # either side: no new requests; what is under way will be answered
    done        @8  :Void;          # broker: the request was carried out

    # --- publishing ---
    publish     @9  :Publish;       # + batches
    published   @10 :Published;

    # --- reading a partition by offset ---
    fetch       @11 :Fetch;
    fetched     @12 :Fetched;       # + batches
    findOffset  @13 :FindOffset;
    foundOffset @14 :FoundOffset;

    # --- subscriptions ---
    subscribe   @15 :Subscribe;
    subscribed  @16 :Subscribed;
    unsubscribe @17 :Unsubscribe;
    credit      @18 :Credit;
    deliver     @19 :Deliver;       # + batches; broker's push, or its answer to pull
    pull        @20 :Pull;
    settle      @21 :Settle;
    settled     @22 :Settled;
    assigned    @23 :Assigned;      # broker's push

    # --- administration ---
    describe    @24 :Describe;
    description @25 :Description;
    administer  @26 :Administer;
    administered @27 :Administered;

    ended       @28 :Ended;         # broker's push: a subscription is over
    leaseEnded  @29 :LeaseEnded;    # broker's push: a lease is over that was not settled
    heartbeat   @30 :Heartbeat;     # a group's member: it lives, and has let go
    seek        @31 :Seek;          # of a stream: go on elsewhere, or pause
    commit      @32 :Commit;        # of a group's member: any offset, with a text
    resolve     @33 :Resolve;       # two phases: what became of these records?
    resolved    @34 :Resolved;

    # --- transactions ---
    openTransactions   @35 :OpenTransactions;
    openedTransactions @36 :OpenedTransactions;
    addBranch          @37 :AddBranch;
    settleInTransaction @38 :SettleInTransaction;
    endTransaction     @39 :EndTransaction;

    # --- logging in ---
    challenge    @40 :Challenge;    # broker's answer to hello, or to authenticate: there is no welcome yet
    authenticate @41 :Authenticate;

    # --- between brokers ---
    peerChallenge @43 :PeerChallenge;  # answer to hello with the feature `peer`
    peerProof    @44 :PeerProof;
    peerWelcome  @45 :PeerWelcome;     # answer to peerProof; from here on the lanes are open
    openLane     @46 :OpenLane;
    closeLane    @47 :Void;            # ends the lane that it is sent in; answered by closeLane when it has ended
    follow       @48 :Follow;          # a broker's: its lane follows the logs of a topic
    followed     @49 :Followed;
    replicate    @50 :Replicate;       # what is new? Answered when something is
    replicated   @51 :Replicated;      # + batches
    peerPong     @52 :PeerPong;        # answer to a ping outside of lanes
    joinTransaction @53 :JoinTransaction;  # to the broker that coordinates; answered by done
    markTransaction @54 :MarkTransaction;  # to the broker that leads a topic; answered by done

    # --- request and reply ---
    openInbox    @55 :Void;            # answered by inbox
    inbox        @56 :Inbox;
    reply        @57 :Reply;           # + batch; a client's, answered by done, and the broker's push to the inbox
  }
}

struct Hello {
  versionMin @0 :UInt16;
  versionMax @1 :UInt16;
  features   @2 :List(Text);     # what the client can do beyond the version
  client     @3 :Text;           # what the client calls itself, such as the name of its library
  producerId  @4 :Int64;         # the ids that an earlier connection of this client got: they are used over this one as
  producerKey @5 :UInt64;        # well, if the key is theirs; both 0: none
  logsIn     @6 :Bool;           # the client has a login, in place of what the connection says about it
}

struct Welcome {
  version          @0 :UInt16;
  features         @1 :List(Text);   # those of the client's that the broker shares
  broker           @2 :Text;
  frameBytesMax    @3 :UInt32;       # of any message that the client sends
  batchBytesMax    @4 :UInt32;       # of a RecordBatch, and of its body when decompressed
  messageBytesMax  @5 :UInt32;       # of one record's value, key and headers together
  keepaliveMs      @6 :UInt32;       # send something (a ping) at least this often
  inflightMax      @7 :UInt32;       # requests without an answer
  subscriptionsMax @8 :UInt32;
  producerId       @9 :Int64;        # the first of 256 ids that no other client gets, for idempotent producers
  producerKey      @10 :UInt64;      # proves that they are this client's: a secret
  user             @11 :Text;        # who the client is to the broker: "anonymous" without a login
  login            @12 :Text;        # the mechanism's last message, such as SCRAM's proof that the broker knows the user
  cluster          @13 :Text;        # the id of the broker's cluster; "": it is in none
  node             @14 :UInt32;      # the broker's number there; 0: it is in none
}

struct Challenge {
  mechanisms @0 :List(Text);     # after hello: names of SASL mechanisms that the client may choose from
  data       @1 :Text;           # later: the mechanism's next message
}

struct Authenticate {
  mechanism @0 :Text;            # the same in each message of a login
  data      @1 :Text;            # as SASL has it; all mechanisms here write text
}

struct Failed {
  code      @0 :Text;            # docs/reference/errors.md
  text      @1 :Text;
  retriable @2 :Bool;
  partition @3 :Int32;           # log.truncated: the partition that lost records
  offset    @4 :Int64;           # log.truncated: where its log and what was read part
  leader    @5 :UInt32;          # partition.not_leader: the node that leads, as far as is known; 0: unknown
  leaderEpoch @6 :Int32;         # partition.not_leader: the epoch in which it leads; 0: unknown
}

struct Goodbye { reason @0 :Text; }

enum Acks { none @0; leader @1; all @2; }

struct Publish {
  target     @0 :Text;           # a topic's name, or an exchange's
  toExchange @1 :Bool;
  acks       @2 :Acks;           # none: no answer comes unless correlation asks for one, and then at once
  partition  @3 :Int32 = -1;     # of a topic; -1: the broker chooses
  mandatory  @4 :Bool;           # say which records no topic took; to a topic it changes nothing
  topics     @5 :List(Text);     # from brokers alone: the topics that an exchange has chosen for all of these batches
}

struct Published { placements @0 :List(Placement); }   # one per batch, in order

struct Placement {
  partition  @0 :Int32;          # of the whole batch; -1: several, none, or not for all of its records
  baseOffset @1 :Int64;          # of the batch's first record; -1 where partition is
  copies     @2 :UInt32;         # records stored, in all topics; 0: unroutable
  returned   @3 :List(UInt32);   # mandatory: the records that no topic took, as ranges of indexes in the batch: first,
                                 # end (exclusive), first, end and so on, ascending
  leaderEpoch @4 :Int32;         # where all went to one topic: the epoch in which the batch was appended, and
  topicIdHigh @5 :UInt64;        # the id of the topic
  topicIdLow  @6 :UInt64;
  refused     @7 :List(RefusedRecords);  # stored nowhere; the others of the batch are, and partition and baseOffset are
                                 # theirs: their offsets count on without the refused ones
}

# Records of one batch that the broker refuses, all for the same reason.
struct RefusedRecords {
  code    @0 :Text;              # docs/reference/errors.md
  text    @1 :Text;
  records @2 :List(UInt32);      # as ranges, like Placement.returned
}

struct Fetch {
  topic     @0 :Text;
  partition @1 :Int32;
  offset    @2 :Int64;
  bytesMin  @3 :UInt32;          # answer when this much can be read, or
  bytesMax  @4 :UInt32;          # 0: answer without batches
  waitMaxMs @5 :UInt32;          # when this time has passed
  where     @6 :Text;            # a predicate over routing key and labels: only these records; "": all
  unsettled @7 :Bool;            # of a queue: only records that are not settled
  leaderEpoch @8 :Int32;         # the epoch in which what lies before offset was read; 0: not checked
  topicIdHigh @9 :UInt64;        # the id of the topic that was read; 0: not checked
  topicIdLow  @10 :UInt64;
  formats   @11 :List(UInt32);   # formats of bodies that the client reads; others come in the first; empty: only 0
  uncommitted @12 :Bool;         # also what belongs to a transaction that is open, or was aborted
}

struct Fetched {
  startOffset   @0 :Int64;       # first offset of the partition that can be read
  highWatermark @1 :Int64;       # the offset behind the last that can be read
  nextOffset    @2 :Int64;       # where the next fetch goes on: nothing that was asked for is left before it
  leaderEpoch   @3 :Int32;       # the epoch in which the broker leads the partition
}

struct FindOffset {
  topic       @0 :Text;
  partition   @1 :Int32;
  timestampMs @2 :Int64;         # where place is time
  place       @3 :Place;
}

# The first batch with a timestamp not before one that is given, the start, or the end.
enum Place { time @0; earliest @1; latest @2; }

struct FoundOffset { offset @0 :Int64; }

struct Subscribe {
  topic      @0 :Text;
  group      @1 :Text;           # "": a queue, or `shared`, or on a stream a reader whose place is not kept
  credit     @2 :UInt32;         # records that may be pushed; 0: pull, or grant later
  start      @3 :Int64 = -2;     # where nothing is committed: an offset, -1 the end, -2 the start (no offset is below 0)
  partitions @4 :List(Int32);    # readers only: these; empty: all
  starts     @5 :List(Int64);    # in place of start, one for each partition; those behind the list: -2
  where      @6 :Text;           # on a stream, a predicate over routing key and labels: only these records; "": all
  member     @7 :Text;           # the consumer's name in its group, queue or shared subscription; one that is taken is
                                 # taken over; "": any
  sessionMs  @8 :UInt32;         # of a group: how long the member's share is kept without a heartbeat, also when the
                                 # connection is lost; 0: the member lives as long as the connection
  isStatic   @9 :Bool;           # of a group: unsubscribe keeps the share too, for the time of the session
  leaderEpoch @10 :Int32;        # readers only: the epoch in which what lies before the starts was read; 0: not checked
  topicIdHigh @11 :UInt64;       # the id of the topic that was read; 0: not checked
  topicIdLow  @12 :UInt64;
  shared     @13 :Text;          # a stream's shared subscription, without a group; made if it is not there; "": none
  formats    @14 :List(UInt32);  # as in Fetch
  twoPhase   @15 :Bool;          # the client says ready and done: needed where delivery is exactly once, with a member
  uncommitted @16 :Bool;         # of a stream: as in Fetch
  priority   @17 :Int32;         # of a queue or shared subscription: consumers of a higher one get records first
}

enum SubscriptionKind { shared @0; group @1; reader @2; }

struct Subscribed {
  subscription @0 :UInt32;       # number on this connection
  kind         @1 :SubscriptionKind;
  leaseMs      @2 :UInt32;       # shared, with leases: how long one lasts; 0: settled on delivery
  leaderEpoch  @3 :Int32;        # the epoch in which the broker leads the partitions
  topicIdHigh  @4 :UInt64;       # the id of the topic
  topicIdLow   @5 :UInt64;
  standsBy     @6 :Bool;         # another one is the single active consumer: `assigned` says when this one is
}

struct Unsubscribe { subscription @0 :UInt32; }

struct Credit {
  subscription @0 :UInt32;
  records      @1 :UInt32;       # in addition to what is left; shared with leases: how many may be held from now on
}

struct Deliver {
  subscription @0 :UInt32;
  partition    @1 :Int32;
  deliveryId   @2 :UInt64;       # of the lease of these records, and no others; for a group's member, the epoch in which
                                 # it came to own the partition; 0 for readers, and where nothing is leased
  attempt      @3 :UInt16;       # 1 the first time; 0 where attempts are not counted
  passedTo     @4 :Int64;        # readers with `where`, without batches: nothing for them lies before this offset
  phase        @5 :Phase;        # two phases: prepare, or commit again what was decided to this member
  settledBefore @6 :Int64;       # two phases: every record before it is settled for good; its mark may be forgotten
}

enum Phase { none @0; prepare @1; commit @2; }

struct Pull {
  subscription @0 :UInt32;
  recordsMax   @1 :UInt32;
  waitMaxMs    @2 :UInt32;       # answer without batches when this time has passed
  placed       @3 :Bool;         # shared with leases: only of this partition, from offset `start` on, without waiting
  partition    @4 :Int32;
  start        @5 :Int64;
}

enum Verdict {
  ack     @0;
  nack    @1;
  reject  @2;
  extend  @3;
  release @4;
  ready   @5;                    # two phases: the client can apply these; the answer is the decision to commit
  done    @6;                    # two phases: it has; names its offsets
}

struct Settle {
  subscription @0 :UInt32;
  entries      @1 :List(Settlement);
  reasons      @2 :List(Text);   # why records are returned or rejected, for people: 255 bytes of each are kept
}

struct Settlement {
  partition  @0 :Int32;
  deliveryId @1 :UInt64;         # as delivered; of a group also any epoch told since the partition was gained
  first      @2 :Int64;          # -1, as `end`: all that is left of the lease
  end        @3 :Int64;          # behind the last
  verdict    @4 :Verdict;
  ms         @5 :UInt32;         # nack: delay before the next attempt, 0 as configured; extend: the lease from now
  reason     @6 :UInt16;         # nack, reject: the place in `reasons`, from 1 on; 0: none is given
}

# Two phases: asks what became of records of a delivery, which `ready` named or could have named. If they were not
# decided, they are aborted with this, if they were not before.
struct Resolve {
  subscription @0 :UInt32;
  partition    @1 :Int32;
  deliveryId   @2 :UInt64;
  first        @3 :Int64;
  end          @4 :Int64;        # behind the last
}

struct Resolved { isDecided @0 :Bool; }

# Takes over a name of transactions: whoever had it is fenced, and what it has open is aborted.
struct OpenTransactions {
  name      @0 :Text;
  timeoutMs @1 :UInt32;          # for which one may be open
  producerId @2 :Int64;          # not 0: only if the name is still this owner's, and nobody else has taken it over
  epoch     @3 :UInt32;
  opening   @4 :UInt64;          # a random number, the same when this is asked for again; 0: none
  producerKey @5 :UInt64;        # of producerId
}

struct OpenedTransactions {
  producerId @0 :Int64;          # with the epoch, the owner of the name
  epoch      @1 :UInt32;
  number     @2 :UInt64;         # of the next transaction; the others are numbered from there
  producerKey @3 :UInt64;        # proves that producerId is this client's: a secret
}

# Lets a producer write in them: its batches have the attribute TRANSACTIONAL, and the transaction's number.
struct AddBranch {
  producerId @0 :Int64;
  epoch      @1 :UInt32;
  branch     @2 :Int64;          # an id of this connection's client
  producerKey @3 :UInt64;        # of producerId; 0 where this connection has opened the name, or has shown the key
}

# Takes records of a queue out of their leases, or commits offsets of a group, if the transaction is committed.
struct SettleInTransaction {
  producerId   @0 :Int64;
  epoch        @1 :UInt32;
  number       @2 :UInt64;
  subscription @3 :UInt32;
  entries      @4 :List(Settlement);  # with verdict ack
  producerKey  @5 :UInt64;       # as in AddBranch
}

struct EndTransaction {
  producerId @0 :Int64;
  epoch      @1 :UInt32;
  number     @2 :UInt64;
  isCommit   @3 :Bool;
  branches   @4 :List(Int64);    # of a commit: the producers whose batches count; those of others are aborted
  sequence   @5 :UInt64;         # of a commit, the client's own count: one that has taken effect is done only once; 0: none
  identity   @6 :Text;           # says what is committed under the sequence: another identity is refused
  producerKey @7 :UInt64;        # as in AddBranch
}

struct Settled { refused @0 :List(Refusal); }   # entries that failed; the others were carried out

struct Refusal {
  entry @0 :UInt32;
  code  @1 :Text;
  text  @2 :Text;
}

struct Ended {
  subscription @0 :UInt32;
  code         @1 :Text;         # why: topic.unknown where the topic was deleted or changed its kind, log.corrupt, ...
  text         @2 :Text;
}

struct LeaseEnded {
  subscription @0 :UInt32;
  partition    @1 :Int32;
  deliveryId   @2 :UInt64;
}

struct Assigned {
  subscription @0 :UInt32;
  epoch        @1 :UInt32;
  partitions   @2 :List(Int32);  # to read from now on; a queue's single active consumer: all, or none
  revoked      @3 :List(Int32);  # to let go of: commit, and answer with a heartbeat of this epoch
}

struct Heartbeat {
  subscription @0 :UInt32;
  epoch        @1 :UInt32;       # of the last assignment whose revoked partitions the member has let go of
}

struct Seek {
  subscription @0 :UInt32;
  partition    @1 :Int32;
  offset       @2 :Int64;        # where to go on; -1: where it is
  isPaused     @3 :Bool;         # nothing more is delivered of it, until the next seek
}

struct Commit {
  subscription @0 :UInt32;
  partition    @1 :Int32;
  epoch        @2 :UInt32;       # any that the member was told since it came to own the partition
  offset       @3 :Int64;        # the next to read
  text         @4 :Text;         # kept with it, at most 4,096 bytes
}

struct Describe {
  topics @0 :List(Text);         # empty: all
}

struct Description {
  broker @0 :Text;
  nodes  @1 :List(Node);         # those that can be reached at a listener of the name that this connection came in by
  topics @2 :List(TopicInfo);
}

struct Node {
  id      @0 :UInt32;
  address @1 :Text;
}

struct TopicInfo {
  name       @0 :Text;
  kind       @1 :Text;           # queue, stream, both; "": unknown topic
  partitions @2 :List(PartitionInfo);
  delivery   @3 :Text;
  messageBytesMax @4 :UInt32;
  partitioner @5 :Text;          # where it is neither murmur2 nor sticky, publish with partition -1
  idHigh     @6 :UInt64;         # a UUID, the topic's own: another topic of that name has another
  idLow      @7 :UInt64;
}

struct PartitionInfo {
  leader        @0 :UInt32;      # a node's id; 0: none is known
  startOffset   @1 :Int64;
  highWatermark @2 :Int64;
  leaderEpoch   @3 :Int32;       # the epoch in which it leads: of two descriptions the one with the later epoch is right
}

struct Administer {
  verb      @0 :Text;            # "topic.create", "exchange.bind", ...: docs/reference/protocol.md lists them
  arguments @1 :Text;            # a JSON object, with the keys of the TOML tables
}

struct Administered { result @0 :Text; }   # JSON

struct PeerChallenge { nonce @0 :Text; }  # 32 random bytes in hexadecimal

# The broker that dials proves that it knows the cluster's secret: docs/reference/protocol.md says over what.
struct PeerProof {
  cluster @0 :Text;
  node    @1 :UInt32;            # the broker that dials, and its session
  session @2 :Text;
  toNode  @3 :UInt32;            # the broker that it means to reach, and the session that it knows of it
  toSession @4 :Text;
  nonce   @5 :Text;              # 32 random bytes in hexadecimal
  proof   @6 :Text;              # HMAC-SHA-256 in hexadecimal
}

struct PeerWelcome {
  proof         @0 :Text;        # HMAC-SHA-256: the broker that was dialed knows the secret, too
  frameBytesMax @1 :UInt32;      # of any message that is sent to it
  lanesMax      @2 :UInt32;      # open at a time
  laneRequestsMax @3 :UInt32;    # requests of one lane without an answer
  laneBytesMax  @4 :UInt32;      # their sizes together, unless it is a single one
  requestsMax   @5 :UInt32;      # of all lanes together
  bytesMax      @6 :UInt32;
}

struct PeerPong { clockMs @0 :Int64; }   # the broker's wall clock, since 1970

# A connection elsewhere, and the user who is logged in over it.
struct OpenLane {
  connection @0 :Text;           # its client's address
  client     @1 :Text;           # what the client calls itself
  user       @2 :Text;
  login      @3 :Text;           # how the user has logged in
  roles      @4 :List(Text);     # those that the login gave
  producers  @5 :List(ProducerKey);  # producer ids that the lane publishes with
}

# A block of producer ids, with the key that proves whose it is.
struct ProducerKey {
  producerId  @0 :Int64;
  producerKey @1 :UInt64;
}

# The logs of a topic at a follower, for their leader to compare. A log's number is its own within the topic.
struct Follow {
  topicIdHigh @0 :UInt64;
  topicIdLow  @1 :UInt64;
  leaderEpoch @2 :Int32;         # in which the follower believes the leader to lead
  logs        @3 :List(LogTable);
}

struct LogTable {
  log    @0 :UInt32;             # its number
  start  @1 :Int64;              # the first offset
  end    @2 :Int64;              # the offset behind the last
  epochs @3 :List(EpochStart);   # ascending
}

struct EpochStart {
  leaderEpoch @0 :Int32;
  offset      @1 :Int64;         # of its first batch
}

struct Followed { cuts @0 :List(LogCut); }  # one for each log of the leader

struct LogCut {
  log       @0 :UInt32;
  at        @1 :Int64;           # the follower drops what it has from here on, or
  isRestart @2 :Bool;            # everything, and goes on here
  producers @3 :Data;            # of the records before it, as the leader knows them: a snapshot
}

struct Replicate {
  ends     @0 :List(LogEnd);     # what is durable at the follower, where that is more than it has told
  bytesMax @1 :UInt32;           # of the batches together, unless it is a single one
}

struct LogEnd {
  log @0 :UInt32;
  end @1 :Int64;
}

struct Replicated { logs @0 :List(LogNews); }  # the batches of the first log come first

struct LogNews {
  log       @0 :UInt32;
  start     @1 :Int64;           # the leader's
  watermark @2 :Int64;
  batches   @3 :UInt16;          # how many of the frame's are this log's
  producers @4 :Data;            # as in LogCut, of the records sent so far, if batches of a thinned log were among them
  thinned   @5 :Int64;           # below it the leader has thinned the log
}

# A producer begins to write in a topic with a transaction.
struct JoinTransaction {
  branch      @0 :Int64;         # the producer; for acks and offsets, the name's own id
  number      @1 :UInt64;        # of the transaction
  topic       @2 :Text;
  topicIdHigh @3 :UInt64;
  topicIdLow  @4 :UInt64;
  user        @5 :Text;          # for acks and offsets: the owner's user
  ownerEpoch  @6 :Int32;         # and epoch; -1: a producer writes
}

# A transaction has ended; answered when that is committed in the topic.
struct MarkTransaction {
  topic       @0 :Text;
  topicIdHigh @1 :UInt64;
  topicIdLow  @2 :UInt64;
  producerId  @3 :Int64;         # the name's own id
  number      @4 :UInt64;
  commits     @5 :List(Int64);   # producers whose batches count there, and producerId if its acks and offsets do
  aborts      @6 :List(Int64);   # those that have joined there as well
}

struct Inbox { address @0 :Text; }  # of this connection, for as long as it lasts

# To an inbox. An address may go on behind its own text: ".", and what the requester tells its requests apart by.
struct Reply { to @0 :Text; }
