// Producer: sends batches of records, several of them in flight.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <linn/batch.h>
#include <linn/error.h>
#include <linn/uuid.h>

namespace linn {

namespace detail {
class Session;
}

/// When a publish is answered.
enum class Acks : std::uint16_t {
  /// At once, when it is in the log, perhaps only in memory.
  none = 0,
  /// When it is durable, as the topic's storage defines it.
  leader = 1,
  /// When every in-sync replica has it.
  all = 2,
};

struct ProducerOptions {
  /// This or `exchange`.
  std::string topic = {};
  /// Chooses the topics by routing key and labels. "" is the default exchange, so that it is an optional.
  std::optional<std::string> exchange = std::nullopt;
  /// Of a topic. -1: the broker chooses, by the hash of the key where a batch has keys (records without one then count
  /// as hash 0), else one partition per batch, by turns.
  std::int32_t partition = -1;
  Acks acks = Acks::all;
  /// Codec::zstd compresses bodies; needs `zstd_available()` and a broker that can tell.
  Codec codec = Codec::none;
  /// Of an exchange: whether `Placement::returned` says which records no topic took.
  bool mandatory = false;
  /// A batch that `add` fills is sent when it has about this size.
  std::size_t batch_bytes = 256 << 10;
  /// Batches that were sent and not answered; beyond it, sending waits for the oldest. At most 8 of an idempotent
  /// producer.
  std::size_t in_flight_max = 8;
  /// Whether the broker recognizes a batch that is sent again, so that each record is stored once and in order. No
  /// effect with Acks::none.
  bool idempotent = true;
};

/// Records of a batch by index, from `first` up to, not including, `end`.
struct IndexRange {
  std::uint32_t first = 0;
  std::uint32_t end = 0;
};

/// Records of a batch that the broker refused for one reason. They are stored nowhere.
struct RefusedRecords {
  std::string code;
  std::string text;
  std::vector<IndexRange> records;
};

/// Where a batch was stored.
struct Placement {
  /// Both -1 where the batch went to several partitions or topics, or nowhere. Record i has base_offset + i, less the
  /// refused ones before it.
  std::int32_t partition = -1;
  std::int64_t base_offset = -1;
  /// Records stored, in all topics together; 0 says that no binding took any.
  std::uint32_t copies = 0;
  /// Where the producer is `mandatory`: the records that no topic took, ascending.
  std::vector<IndexRange> returned = {};
  /// Where there are any, `Confirmation::wait` throws.
  std::vector<RefusedRecords> refused = {};
  /// The epoch of the topic's leader; 0 and no id where the batch went to several topics, or nowhere.
  std::int32_t leader_epoch = 0;
  Uuid topic_id = {};
};

using Receipt = Placement;

/// The broker refused records of a batch, as `placement.refused` says; the others are stored. It has the code and the
/// text of the first reason, or is connection.lost where a refused record may be stored all the same, because the batch
/// was sent before over a connection that was lost.
class RecordsRefused : public Error {
 public:
  RecordsRefused(const Error& error, Placement at) : Error(error), placement(std::move(at)) {}
  Placement placement;
};

/// The broker's word on one batch, to come.
class Confirmation {
 public:
  /// Wait for it, up to the request timeout from when it was sent, over any number of connections and of refusals for
  /// now. Throws RecordsRefused if some records were refused, and the others stored; Error: the broker's refusal of the
  /// batch (nothing was stored), or connection.lost or request.timeout (the text says whether it was never sent, or may
  /// be stored). May be called again, and by any thread.
  Placement wait() const;
  /// Whether `wait` would return or throw at once.
  bool ready() const;

 private:
  friend class Producer;
  struct State;
  explicit Confirmation(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// Made by `Client::producer`. One thread at a time; make one per thread. Batches of one producer are stored in the
/// order in which they were sent. After a lost connection all batches that were not answered are sent again in that
/// order, and so is a batch that the broker refuses for now (`Error::retriable`), before any behind it. The broker
/// stores each once; without `idempotent`, one that it stored without an answer is stored twice.
class Producer {
 public:
  Producer(Producer&&) noexcept;
  Producer& operator=(Producer&&) noexcept;
  /// What `add` collected and `flush` did not send is dropped. What was sent is not waited for.
  ~Producer();

  /// Publish one record and wait: stored, as `acks` says, when this returns. Collected records are sent before it.
  Receipt publish(const Record& record);

  /// Collect a record; full batches are sent. What becomes of them is told by `flush`.
  ///
  /// Throws Error message.invalid or message.too_large (the record was not taken), and what sending throws.
  void add(const Record& record);
  void add(std::string_view value, std::optional<std::string_view> key = std::nullopt);

  /// Send what was collected, as one batch; std::nullopt where there is nothing.
  std::optional<Confirmation> send();

  /// Send a batch with its records as they are: one that was sealed by a BatchBuilder, or one that was consumed. It
  /// gets this producer's numbers, and travels without its stamp. Waits while `in_flight_max` batches are unanswered.
  /// Throws Error batch.malformed, batch.corrupt if the bytes are no sealed batch.
  Confirmation send_batch(std::string message);
  Confirmation send_batch(const Batch& batch);

  /// Send what was collected, and wait until all that was sent is answered. Throws the first failure that no `wait` of
  /// its Confirmation has thrown; what follows it was waited for, too.
  void flush();

 private:
  friend class Client;
  struct State;
  Producer(std::shared_ptr<detail::Session> session, ProducerOptions options);
  std::unique_ptr<State> state_;
};

}  // namespace linn
