// Consumer: records that the broker pushes, and what the application says of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <linn/batch.h>

namespace linn {

namespace detail {
struct Origin;
}

inline constexpr std::int64_t from_start = -2;
inline constexpr std::int64_t from_end = -1;
inline constexpr std::chrono::milliseconds forever = std::chrono::milliseconds::max();

struct ConsumerOptions {
  std::string topic;
  /// On a stream: the group whose members share the partitions and whose place is kept. Empty: on a queue one of the
  /// competing consumers, on a stream a reader whose place nobody keeps.
  std::string group = {};
  /// On a stream, without a group: the shared subscription for whose records consumers compete as for those of a queue.
  /// It is made if it is not there, and begins at `start`. Empty: none.
  std::string shared = {};
  /// The consumer's name in its group, queue or shared subscription; one of that name that is there already is fenced.
  /// Empty: any.
  std::string name = {};
  /// Records on their way or waiting here; leased ones count until they are settled. With large records this is what
  /// bounds memory. std::nullopt: 4,096 of a stream; of a queue a few at first, then as many as the application is
  /// quick.
  std::optional<std::uint32_t> prefetch = std::nullopt;
  /// The time from its delivery for which a queue's lease is renewed, while the application has records of it; 0: none.
  std::chrono::milliseconds renewal_max = std::chrono::hours(1);
  /// Of a stream, where nothing is committed: an offset, `from_end` or `from_start`.
  std::int64_t start = from_start;
  /// For readers: these; empty: all.
  std::vector<std::int32_t> partitions = {};
  /// In place of `start`, one for each partition of the topic; those behind its end begin at the start.
  std::vector<std::int64_t> starts = {};
  /// Of a stream: a predicate over labels and routing key, such as `label.kind = "late"`. The broker passes over all
  /// other records, and for a group they count as consumed. Empty: all records.
  std::string where = {};
};

enum class SubscriptionKind : std::uint16_t {
  /// Competes with the other consumers of a queue, or of a shared subscription.
  shared = 0,
  group = 1,
  reader = 2,
};

/// Batches that were delivered together: records of one partition, in order.
struct Delivery {
  std::int32_t partition = 0;
  /// Of the lease; 0 where there is none.
  std::uint64_t delivery_id = 0;
  /// 1 the first time; 0 where attempts are not counted.
  std::uint16_t attempt = 0;
  /// At least one.
  std::vector<Batch> batches;
  /// The subscription that it came by. While there is a copy of this, the lease is renewed.
  std::shared_ptr<const detail::Origin> origin = {};

  std::int64_t first_offset() const noexcept { return batches.front().first_offset(); }
  std::int64_t end_offset() const noexcept { return batches.back().end_offset(); }
  std::size_t size() const noexcept;
};

/// One record of a delivery. Cheap to copy; keeps its batch alive.
struct Message {
  Batch batch;
  std::size_t index = 0;
  std::int32_t partition = 0;
  std::uint64_t delivery_id = 0;
  std::uint16_t attempt = 0;
  /// The subscription that it came by. While there is a copy of this, the lease is renewed.
  std::shared_ptr<const detail::Origin> origin = {};

  RecordView record() const noexcept { return batch[index]; }
  std::int64_t offset() const noexcept { return record().offset(); }
};

enum class Verdict : std::uint16_t {
  /// Queue: done with. Group: its place is behind the last of them.
  ack = 0,
  /// Queue: delivered again, after `ms` or as the topic says. Group: reads on from the first of them.
  nack = 1,
  /// Queue: to the dead-letter topic. Group: refused.
  reject = 2,
  /// Queue: the whole lease ends `ms` from now. Group: refused.
  extend = 3,
  /// Queue: back to its place, and the attempt does not count: for what nobody has looked at. Group: refused.
  release = 4,
};

/// `first` and `end` of a settlement of all that is left of a lease.
inline constexpr std::int64_t whole_lease = -1;

/// Bytes of a reason that are sent.
inline constexpr std::size_t reason_bytes_max = 255;

/// What is said of the records from `first` up to, not including, `end`; or, where both are `whole_lease`, of all
/// records of the delivery that were not settled before.
struct Settlement {
  std::int32_t partition = 0;
  std::uint64_t delivery_id = 0;
  std::int64_t first = 0;
  std::int64_t end = 0;
  Verdict verdict = Verdict::ack;
  std::uint32_t ms = 0;
  /// Why the records are returned or rejected, for people: a dead letter has the last reason that was given. Bytes that
  /// are not UTF-8 are replaced.
  std::string reason = {};
};

/// A settlement that changed nothing.
struct Refusal {
  /// Its index among those of the call.
  std::uint32_t entry = 0;
  std::string code;
  std::string text;
};

/// Made by `Client::consumer`. One thread at a time calls `next` and `next_delivery`; any thread may settle.
///
/// After a reconnection the next `next` subscribes again: a queue delivers again what was not settled, a group goes on
/// where it committed, a reader behind what it has read. Settlements of what came before are void.
///
///     while (auto message = consumer.next(std::chrono::seconds(5))) {
///       work(message->record().value());
///       consumer.ack(*message);
///     }
class Consumer {
 public:
  Consumer(Consumer&&) noexcept;
  Consumer& operator=(Consumer&&) noexcept;
  /// Unsubscribes, without waiting: records that were not settled go back to their queue; of those that were not handed
  /// out the attempt does not count.
  ~Consumer();

  SubscriptionKind kind() const noexcept;
  /// The subscription's number on its connection.
  std::uint32_t number() const noexcept;
  /// How long a lease lasts; 0 where records are settled when they are delivered, and for groups and readers.
  std::chrono::milliseconds lease() const noexcept;
  /// What a group's member owns now.
  std::vector<std::int32_t> partitions() const;

  /// The next record, or std::nullopt when the time has passed.
  ///
  /// Throws Error: a refusal of `ack` and the like that nobody has heard of; batch.corrupt and batch.malformed for a
  /// batch that is damaged (its records stay leased until their lease ends); connection.failed and the like where no
  /// broker was found in `retries_max` attempts; in these cases it may be called again. The reason why the subscription
  /// ended, client.closed: each time from then on, when what arrived was handed out.
  std::optional<Message> next(std::chrono::milliseconds timeout = forever);

  /// The next delivery as a whole; throws as `next`. Not between two records that `next` takes from one delivery: then
  /// it throws std::logic_error.
  std::optional<Delivery> next_delivery(std::chrono::milliseconds timeout = forever);

  /// Settle without waiting: of a delivery, what was not settled before. Does nothing for a reader, and where records
  /// are settled when they are delivered. A refusal is thrown by the next `next`, `next_delivery`, `flush` or `close`;
  /// that an outage made it void by the last two only, as delivery.not_current.
  void ack(const Message& message);
  void ack(const Delivery& delivery);
  void nack(const Message& message, std::chrono::milliseconds delay = std::chrono::milliseconds(0),
            std::string_view reason = {});
  void nack(const Delivery& delivery, std::chrono::milliseconds delay = std::chrono::milliseconds(0),
            std::string_view reason = {});
  void reject(const Message& message, std::string_view reason = {});
  void reject(const Delivery& delivery, std::string_view reason = {});
  void extend(const Message& message, std::chrono::milliseconds lease);
  void extend(const Delivery& delivery, std::chrono::milliseconds lease);

  /// Settle and wait until it is as durable as the topic's records. Returns the entries that were refused; all others
  /// were carried out.
  std::vector<Refusal> settle(const std::vector<Settlement>& entries);

  /// Wait for all that was settled without waiting. Throws the first refusal.
  void flush();

  /// `flush`, and unsubscribe. Idempotent.
  void close();

 private:
  friend class Client;
  struct State;
  explicit Consumer(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace linn
