// The control messages of schema/protocol.capnp as plain structs, where the public headers have none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <linn/client.h>

#include "producer_ids.h"

namespace linn::detail {

// --- requests ---

struct Hello {
  std::uint16_t version_min = 1;
  std::uint16_t version_max = 1;
  std::vector<std::string> features;
  std::string client;
  ProducerClaim ids{};
  bool logs_in = false;  ///< it has a login, in place of what its connection says about it
};

struct Authenticate {
  std::string mechanism;
  std::string data;
};

struct Publish {
  std::string target;
  bool to_exchange = false;
  Acks acks = Acks::leader;
  std::int32_t partition = -1;
  bool mandatory = false;
};

struct FindOffset {
  std::string topic;
  std::int32_t partition = 0;
  std::int64_t timestamp_ms = 0;
  /// 0: that time; else a `Place`.
  std::uint16_t place = 0;
};

struct Subscribe {
  std::string topic;
  std::string group;
  std::uint32_t credit = 0;
  std::int64_t start = from_start;
  std::vector<std::int32_t> partitions;
  std::vector<std::int64_t> starts;
  std::string where;
  std::string member;
  std::string shared;
  /// Of a reader, where what lies before `starts` was read; 0: not checked.
  std::int32_t leader_epoch = 0;
  std::uint64_t topic_id_high = 0;
  std::uint64_t topic_id_low = 0;
};

struct Unsubscribe {
  std::uint32_t subscription = 0;
};

struct Credit {
  std::uint32_t subscription = 0;
  std::uint32_t records = 0;
};

struct Heartbeat {
  std::uint32_t subscription = 0;
  std::uint32_t epoch = 0;
};

struct Settle {
  std::uint32_t subscription = 0;
  std::vector<Settlement> entries;
};

struct Describe {
  std::vector<std::string> topics;
};

struct Administer {
  std::string verb;
  std::string arguments;
};

struct Goodbye {
  std::string reason;
};

struct Ping {};
struct Pong {};

// --- answers and pushes ---

struct Welcome {
  BrokerInfo broker;
  std::string user;
  /// The last message of the login.
  std::string login;
};

struct Challenge {
  std::vector<std::string> mechanisms;
  std::string data;
};

struct Failed {
  std::string code;
  std::string text;
  bool retriable = false;
};

struct Done {};

struct Published {
  std::vector<Placement> placements;
};

struct FetchedHead {
  std::int64_t start_offset = 0;
  std::int64_t high_watermark = 0;
  std::int64_t next_offset = 0;
};

struct FoundOffset {
  std::int64_t offset = 0;
};

struct Subscribed {
  std::uint32_t subscription = 0;
  SubscriptionKind kind = SubscriptionKind::shared;
  std::uint32_t lease_ms = 0;
  std::int32_t leader_epoch = 0;
  std::uint64_t topic_id_high = 0;
  std::uint64_t topic_id_low = 0;
};

struct Deliver {
  std::uint32_t subscription = 0;
  std::int32_t partition = 0;
  std::uint64_t delivery_id = 0;
  std::uint16_t attempt = 0;
  /// Readers with a filter, without batches: nothing for them lies before this offset.
  std::int64_t passed_to = 0;
};

struct Settled {
  std::vector<Refusal> refused;
};

struct Assigned {
  std::uint32_t subscription = 0;
  std::uint32_t epoch = 0;
  std::vector<std::int32_t> partitions;
  std::vector<std::int32_t> revoked;
};

struct Ended {
  std::uint32_t subscription = 0;
  std::string code;
  std::string text;
};

struct LeaseEnded {
  std::uint32_t subscription = 0;
  std::int32_t partition = 0;
  std::uint64_t delivery_id = 0;
};

struct NodeInfo {
  std::uint32_t number = 0;
  std::string address;
};

struct Description {
  std::vector<NodeInfo> nodes;
  std::vector<TopicInfo> topics;
};

struct Administered {
  std::string result;
};

/// A member that came with a later schema.
struct Unknown {};

/// What a broker sends.
using Incoming =
    std::variant<Welcome, Challenge, Failed, Done, Ping, Pong, Goodbye, Published, FetchedHead, FoundOffset, Subscribed,
                 Deliver, Settled, Assigned, Ended, LeaseEnded, Description, Administered, Unknown>;

struct IncomingFrame {
  std::uint64_t correlation = 0;
  std::uint16_t batches = 0;
  Incoming message;
};

}  // namespace linn::detail
