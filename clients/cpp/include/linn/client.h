// Client: a connection to a broker; everything else is made from it.
//
//     auto client = linn::Client::connect("linn://127.0.0.1:5466");
//     auto producer = client.producer({.topic = "greetings"});
//     linn::Receipt receipt = producer.publish({.value = "hello"});  // Stored when this returns.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <linn/batch.h>
#include <linn/consumer.h>
#include <linn/error.h>
#include <linn/login.h>
#include <linn/producer.h>
#include <linn/uuid.h>

namespace linn {

namespace detail {
class Session;
}

/// For linns:// URLs. Files are in PEM, and are read at each connection. The host's name is always checked.
struct TlsOptions {
  /// File of the authorities to trust. Empty: the system's.
  std::string ca = {};
  /// File of the client's own certificate, for a broker that asks for one.
  std::string certificate = {};
  /// File of its private key. Empty: it is in the same file.
  std::string key = {};
};

struct ClientOptions {
  /// What the broker's log calls this client.
  std::string name = "linn-cpp";
  /// For one attempt to connect and be welcomed.
  std::chrono::milliseconds connect_timeout{5'000};
  /// For a request until its answer, and for a publish until its confirmation, with all waits for a connection; and for
  /// the broker to read more of what is sent.
  std::chrono::milliseconds request_timeout{30'000};
  /// Attempts to reconnect before whatever waits is failed, and attempts to send one batch again after a lost
  /// connection or a refusal. std::nullopt: the client tries for as long as it is open; a request or a publish then
  /// fails when its timeout is over.
  std::optional<std::uint32_t> retries_max = std::nullopt;
  /// The wait before the second attempt to connect; it doubles from one to the next, less up to half of it at random.
  std::chrono::milliseconds backoff{50};
  /// The longest such wait.
  std::chrono::milliseconds backoff_max{2'000};
  /// Takes a line when the connection is lost, every 30 s while there is none, when it is back, and when the leader of a
  /// topic can't be reached; standard error does where this is empty. Called by threads of the client's, for one line at a
  /// time: it must not throw, and neither use nor own the client.
  std::function<void(const std::string& line)> log = {};
  /// Authorities and the client's certificate, for a linns:// URL. std::nullopt: the system's authorities.
  std::optional<TlsOptions> tls = std::nullopt;
  /// A password or a token, which the client shows at each connection where the broker requires a login. std::nullopt:
  /// the connection itself says who the client is, by its certificate or by a Unix socket, or nobody asks.
  std::optional<Login> login = std::nullopt;
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
  /// The first of 256 producer ids, which no other client is given.
  std::int64_t producer_id = 0;
  /// Proves on later connections that they are this client's: a secret.
  std::uint64_t producer_key = 0;
  /// The id of the broker's cluster, and the broker's number there. Empty and 0: it is in none.
  std::string cluster = {};
  std::uint32_t node = 0;
};

struct FetchRequest {
  std::string topic;
  std::int32_t partition = 0;
  std::int64_t offset = 0;
  /// Answered when so much can be read, or when `wait` has passed.
  std::uint32_t bytes_min = 1;
  std::uint32_t bytes_max = 1 << 20;
  std::chrono::milliseconds wait{0};
  /// A predicate over labels and routing key: only these records. Empty: all.
  std::string where = {};
  /// Of a queue: only records that are not settled.
  bool unsettled = false;
};

struct Fetched {
  /// From the offset that was asked for on, in order.
  std::vector<Batch> batches;
  std::int64_t start_offset = 0;
  std::int64_t high_watermark = 0;
  /// Where to go on: no record that was asked for lies between the last batch and there.
  std::int64_t next_offset = 0;
};

struct PartitionInfo {
  /// The broker that leads it, by its number; 0: none is known, or the broker is in no cluster.
  std::uint32_t leader = 0;
  std::int64_t start_offset = 0;
  std::int64_t high_watermark = 0;
  /// The epoch in which it leads.
  std::int32_t leader_epoch = 0;
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
  /// The topic's own: another topic of that name has another.
  Uuid id = {};
};

/// A place in a partition that is no time.
enum class Place : std::uint16_t { earliest = 1, latest = 2 };

/// One connection, which comes back, and in a cluster one to each broker that leads a topic of a producer. Any number of
/// threads may use one client; copies share the connections.
///
/// Threads of the client's own read answers, keep connections alive and renew leases, so that no caller needs to; others
/// make a lost connection again, for as long as the client is open, connect to leaders, and send again what was refused
/// for now. Meanwhile consumers wait, and publishes and requests wait up to the request timeout. The connections end
/// with `close`, or with the last of the client, its producers and its consumers.
///
/// Every request throws what the broker refuses it with; request.timeout, where the answer did not come in time: then
/// it may or may not have been carried out; connection.lost and connection.failed, where `retries_max` are used up.
class Client {
 public:
  /// Connect and be welcomed, once. URLs: linn://HOST[:PORT] (port 5466 where there is none), linn://[V6][:PORT],
  /// linn+unix:///PATH, and linn://HOST,HOST for several brokers of a cluster: the first that answers is used, and
  /// after a loss the next one.
  ///
  /// Throws Error listener.address_invalid, connection.failed, protocol.version_unsupported, protocol.malformed (what
  /// answered is no broker of linn), tls.failed, or auth.failed (the broker refuses the login, there is none, or it has
  /// not proved that it knows the user).
  static Client connect(std::string_view url, ClientOptions options = {});

  /// The welcome of the first connection.
  const BrokerInfo& broker() const noexcept;

  /// The client's name to the broker, on the last connection: "anonymous" where nobody had to log in.
  std::string user() const;

  /// In a cluster, waits up to a second for a connection to the topic's leader; without one, its batches are passed on.
  /// Throws Error message.invalid (more batches in flight than an idempotent producer may have), limit.exceeded (the
  /// client has 256 idempotent producers).
  Producer producer(ProducerOptions options) const;

  /// Subscribe. Throws topic.unknown, delivery.wrong_kind and others.
  Consumer consumer(ConsumerOptions options) const;

  /// Read by offset; settles nothing. Throws log.offset_out_of_range, topic.unknown, delivery.wrong_kind (`unsettled`
  /// records of a stream) and others.
  Fetched fetch(const FetchRequest& request) const;

  /// The offset of the first batch with a timestamp not before this one.
  std::int64_t find_offset(std::string_view topic, std::int32_t partition, std::int64_t timestamp_ms) const;
  /// The offset of the start or of the end.
  std::int64_t find_offset(std::string_view topic, std::int32_t partition, Place place) const;

  /// Topics by name; all of them where none is named.
  std::vector<TopicInfo> describe(const std::vector<std::string>& topics = {}) const;

  /// Carry out an admin verb of docs/reference/protocol.md; arguments and result are JSON. Not asked again where the
  /// connection is lost: connection.lost leaves open whether it was carried out.
  std::string administer(std::string_view verb, std::string_view arguments = "{}") const;

  /// Wait for what was sent, up to the request timeout, end the connections, and fail what waits. Where the client is
  /// connecting, this attempt is waited for. Idempotent.
  void close() const noexcept;

 private:
  explicit Client(std::shared_ptr<detail::Session> session) noexcept;
  std::shared_ptr<detail::Session> session_;
};

}  // namespace linn
