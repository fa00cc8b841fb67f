// Client: a connection to a broker; everything else is made from it.
//
//     auto client = linn::Client::connect("linn://127.0.0.1:5466");
//     auto producer = client.producer({.topic = "greetings"});
//     linn::Receipt receipt = producer.publish({.value = "hello"});  // Stored when this returns.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <linn/batch.h>
#include <linn/consumer.h>
#include <linn/error.h>
#include <linn/producer.h>

namespace linn {

namespace detail {
class Connection;
}

struct ClientOptions {
  /// What the broker's log calls this client.
  std::string name = "linn-cpp";
  /// To connect and be welcomed.
  std::chrono::milliseconds connect_timeout{5'000};
  /// For an answer, and for the broker to read more of what is sent.
  std::chrono::milliseconds request_timeout{30'000};
  /// Of any message that the broker sends, and of all batches behind one: memory that a broker can make this take.
  std::size_t receive_bytes_max = 64 << 20;
};

/// What the broker said in welcome.
struct BrokerInfo {
  std::string name;
  std::uint16_t version = 0;
  std::vector<std::string> features;
  std::uint32_t frame_bytes_max = 0;
  std::uint32_t batch_bytes_max = 0;
  std::uint32_t message_bytes_max = 0;
  std::uint32_t keepalive_ms = 0;
  std::uint32_t inflight_max = 0;
  std::uint32_t subscriptions_max = 0;
};

struct FetchRequest {
  std::string topic;
  std::int32_t partition = 0;
  std::int64_t offset = 0;
  /// Answered when so much can be read, or when `wait` has passed.
  std::uint32_t bytes_min = 1;
  std::uint32_t bytes_max = 1 << 20;
  std::chrono::milliseconds wait{0};
};

struct Fetched {
  /// The first begins at the offset that was asked for, the others follow without a gap.
  std::vector<Batch> batches;
  std::int64_t start_offset = 0;
  std::int64_t high_watermark = 0;
};

struct PartitionInfo {
  std::uint32_t leader = 0;
  std::int64_t start_offset = 0;
  std::int64_t high_watermark = 0;
};

struct TopicInfo {
  std::string name;
  /// queue, stream or both; empty where there is no such topic.
  std::string kind;
  std::string delivery;
  /// Where it is neither murmur2 nor sticky, the broker should choose the partition.
  std::string partitioner;
  std::uint32_t message_bytes_max = 0;
  std::vector<PartitionInfo> partitions;
};

/// One connection. Any number of threads may use one client; copies share the connection.
///
/// A thread of the client's own reads answers and keeps the connection alive, so that no caller needs to. A lost
/// connection is not made again: every call then throws Error connection.lost, and a new client is the way on. The
/// connection ends with `close`, or with the last of the client, its producers and its consumers.
///
/// Every request throws what the broker refuses it with; connection.lost; and request.timeout, where the answer did
/// not come in time: then it may or may not have been carried out.
class Client {
 public:
  /// Connect and be welcomed. URLs: linn://HOST[:PORT] (port 5466 where there is none), linn://[V6][:PORT],
  /// linn+unix:///PATH.
  ///
  /// Throws Error listener.address_invalid, connection.failed, protocol.version_unsupported, or protocol.malformed
  /// (what answered is no broker of linn).
  static Client connect(std::string_view url, ClientOptions options = {});

  const BrokerInfo& broker() const noexcept;

  Producer producer(ProducerOptions options) const;

  /// Subscribe. Throws topic.unknown, delivery.wrong_kind and others.
  Consumer consumer(ConsumerOptions options) const;

  /// Read by offset; settles nothing. Throws log.offset_out_of_range, topic.unknown and others.
  Fetched fetch(const FetchRequest& request) const;

  /// The offset of the first batch with a timestamp not before this one; -1 is the end, -2 the start.
  std::int64_t find_offset(std::string_view topic, std::int32_t partition, std::int64_t timestamp_ms) const;

  /// Topics by name; all of them where none is named.
  std::vector<TopicInfo> describe(const std::vector<std::string>& topics = {}) const;

  /// Carry out an admin verb of docs/reference/protocol.md; arguments and result are JSON.
  std::string administer(std::string_view verb, std::string_view arguments = "{}") const;

  /// Send all, wait for what is under way for up to the request timeout, and end the connection. Idempotent.
  void close() const noexcept;

 private:
  explicit Client(std::shared_ptr<detail::Connection> connection) noexcept;
  std::shared_ptr<detail::Connection> connection_;
};

}  // namespace linn
