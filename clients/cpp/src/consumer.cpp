#include <linn/consumer.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <linn/client.h>

#include "session.h"
#include "subscription.h"

namespace linn {

using detail::Clock;
using detail::Connection;
using detail::Deadline;
using detail::Session;
using detail::Subscription;

namespace {

/// The wait of an application that has all there may be, and settles nothing, until there may be twice as much.
constexpr std::chrono::milliseconds starved_after{100};

}  // namespace

std::size_t Delivery::size() const noexcept {
  std::size_t records = 0;
  for (const Batch& batch : batches) records += batch.size();
  return records;
}

/// A settlement came to nothing: what it is about came by a connection that is gone.
struct TooLate : Error {
  TooLate()
      : Error("delivery.not_current",
              "the connection that the records came by is gone; the broker may deliver them again") {}
};

/// A subscription, and the connection that it is on.
struct Attachment {
  std::shared_ptr<Connection> connection;
  std::shared_ptr<Subscription> subscription;
};

struct Consumer::State {
  std::shared_ptr<Session> session;
  ConsumerOptions options;
  detail::Limits limits;
  /// Changed by the thread that takes, under `mutex`.
  Attachment attached;
  /// A subscription that the broker was asked for, and its answer to come.
  Attachment asked;
  detail::PendingReply answer;
  /// Retriable refusals of the subscription in a row.
  std::uint64_t refusals = 0;
  /// The next offset of a reader, by partition.
  std::map<std::int32_t, std::int64_t> places;
  /// What `next` is in the middle of.
  std::optional<Delivery> current;
  std::size_t batch_index = 0;
  std::size_t record_index = 0;
  bool closed = false;
  std::mutex mutex;
  /// Settlements that nobody waits for, oldest first. Guarded by `mutex`, as are the errors.
  std::deque<detail::PendingReply> settling;
  /// The first refusal that nobody has heard of.
  std::optional<Error> refusal;
  /// The same of settlements that an outage made void, which is no reason to stop: their records come again.
  std::optional<Error> too_late;

  State(std::shared_ptr<Session> used, ConsumerOptions chosen)
      : session(std::move(used)),
        options(std::move(chosen)),
        limits{options.prefetch.value_or(detail::prefetch_max), !options.prefetch && options.group.empty(),
               std::clamp<std::chrono::milliseconds>(options.renewal_max, std::chrono::milliseconds(0),
                                                     std::chrono::hours(24 * 365))} {}

  ~State() {
    if (asked.connection) asked.connection->unsubscribe(asked.subscription);
    if (attached.connection) attached.connection->unsubscribe(attached.subscription);
  }

  Attachment latest() {
    const std::lock_guard lock(mutex);
    return attached;
  }

  // --- subscribing ---

  /// Subscribe; false where there is no answer in time: another call waits on. Throws Error.
  bool subscribe(const std::shared_ptr<Connection>& connection, Deadline deadline) {
    if (!asked.connection) {
      detail::Subscribe request{options.topic, options.group, limits.first_credit(), options.start, options.partitions,
                                options.starts, options.where, options.name, options.shared};
      if (auto starts = starts_of_reader(*connection, deadline)) {
        request.starts = std::move(*starts);
        if (attached.subscription) {  // The broker says so if it has lost what was read before.
          const detail::Subscribed read_in = attached.subscription->said();
          request.leader_epoch = read_in.leader_epoch;
          request.topic_id_high = read_in.topic_id_high;
          request.topic_id_low = read_in.topic_id_low;
        }
      }
      auto subscription = std::make_shared<Subscription>(limits);
      answer = connection->request(request, subscription);
      asked = {connection, std::move(subscription)};
    }
    if (answer.wait_until(deadline) != std::future_status::ready) return false;
    Attachment made = std::exchange(asked, {});
    Connection::expect<detail::Subscribed>(Connection::wait(answer, deadline));
    const std::lock_guard lock(mutex);
    attached = std::move(made);
    return true;
  }

  /// After the connection was lost; false where it can't be done in time. Throws Error.
  bool subscribe_again(Deadline deadline) {
    for (const auto& [partition, end] : attached.subscription->ends()) places[partition] = end;
    for (;;) {
      const auto connection = asked.connection ? asked.connection : session->wait_for_connection(deadline);
      if (!connection) return false;
      try {
        const bool is_done = subscribe(connection, deadline);
        if (is_done) refusals = 0;
        return is_done;
      } catch (const Error& error) {
        if (Clock::now() >= deadline) return false;
        if (connection->failure() || connection->drains()) continue;  // The next connection's turn.
        if (!error.retriable() || session->is_used_up(++refusals)) throw;
        session->sleep_until(std::min(deadline, Clock::now() + session->backoff_after(refusals - 1)));
      }
    }
  }

  /// Find where a reader begins: behind what it has read; or at the end there was when it began, so that its place is
  /// kept whatever happens before its first record. std::nullopt where the options say it, or the broker.
  std::optional<std::vector<std::int64_t>> starts_of_reader(Connection& connection, Deadline deadline) {
    if (!options.shared.empty()) return std::nullopt;
    const bool goes_on = !places.empty();
    if (!goes_on && (!options.group.empty() || options.start != from_end || !options.starts.empty()))
      return std::nullopt;
    auto reply = connection.request(detail::Describe{{options.topic}});
    deadline = std::min(deadline, detail::deadline_in(session->options().request_timeout));
    const auto topics = Connection::expect<detail::Description>(Connection::wait(reply, deadline)).first.topics;
    if (topics.size() != 1 || topics.front().kind != "stream") return std::nullopt;
    std::vector<std::int64_t> starts;
    for (const PartitionInfo& partition : topics.front().partitions) {
      const auto number = static_cast<std::int32_t>(starts.size());
      if (!goes_on) places[number] = partition.high_watermark;
      const auto known = places.find(number);
      const bool named = starts.size() < options.starts.size();
      const std::int64_t first = named ? options.starts[starts.size()] : std::max<std::int64_t>(0, options.start);
      starts.push_back(known != places.end() ? known->second : first);
    }
    return starts;
  }

  // --- taking ---

  std::optional<Delivery> take(Deadline deadline) {
    auto arrival = wait_for_arrival(deadline);
    if (!arrival) return std::nullopt;
    const std::uint32_t records = arrival->records;
    const detail::Deliver head = arrival->head;
    try {
      Delivery delivery = checked(std::move(*arrival));
      if (delivery.end_offset() - delivery.first_offset() > records)
        attached.subscription->has_gaps(head, offsets_of(delivery));
      attached.subscription->release(records);
      return delivery;
    } catch (const Error&) {
      attached.subscription->release(records);
      throw;
    }
  }

  static std::vector<std::int64_t> offsets_of(const Delivery& delivery) {
    std::vector<std::int64_t> offsets;
    offsets.reserve(delivery.size());
    for (const Batch& batch : delivery.batches)
      for (const RecordView record : batch) offsets.push_back(record.offset());
    return offsets;
  }

  std::optional<detail::Arrival> wait_for_arrival(Deadline deadline) {
    for (;;) {
      const auto subscription = attached.subscription;
      subscription->wants(Clock::now());
      give_credit(subscription->empty());
      const Deadline patience = subscription->may_starve() ? Clock::now() + starved_after : Deadline::max();
      try {
        if (auto arrival = subscription->take(std::min(deadline, patience))) return arrival;
        if (deadline <= patience) return std::nullopt;
        subscription->starved();
      } catch (const Error&) {
        if (closed || !subscription->is_lost()) throw;
        if (!subscribe_again(deadline)) return std::nullopt;
      }
    }
  }

  Delivery checked(detail::Arrival arrival) const {
    Delivery delivery{arrival.head.partition, arrival.head.delivery_id, arrival.head.attempt, {}, arrival.origin};
    for (std::string& message : arrival.batches) {
      Batch batch = Batch::decode(std::move(message), session->options().receive_bytes_max);
      if (!batch.stamped()) throw Error("batch.corrupt", "the broker delivered a batch without a stamp", true);
      if (!delivery.batches.empty() && batch.first_offset() < delivery.end_offset())
        throw Error("batch.malformed", "the batches of a delivery overlap");
      delivery.batches.push_back(std::move(batch));
    }
    return delivery;
  }

  std::optional<Message> next(Deadline deadline) {
    for (;;) {
      if (!current) {
        current = take(deadline);
        if (!current) return std::nullopt;
        batch_index = record_index = 0;
      }
      Message message{current->batches[batch_index], record_index,     current->partition,
                      current->delivery_id,          current->attempt, current->origin};
      if (!attached.subscription->hand_out(message.record().next_offset())) {
        current.reset();
        continue;
      }
      if (++record_index == message.batch.size()) {
        record_index = 0;
        if (++batch_index == current->batches.size()) current.reset();
      }
      return message;
    }
  }

  /// A connection that is lost is told by the subscription, behind what has arrived.
  void give_credit(bool idle) {
    const std::uint32_t records = attached.subscription->grant(idle);
    if (records == 0) return;
    try {
      attached.connection->post(detail::Credit{attached.subscription->said().subscription, records});
    } catch (const Error&) {
    }
  }

  // --- settling ---

  /// Send settlements of what came by `to`. Throws Error; TooLate where its connection is lost.
  static detail::PendingReply send(const Attachment& to, const std::vector<Settlement>& entries) {
    if (to.subscription->is_lost()) throw TooLate();
    const detail::Subscribed said = to.subscription->said();
    // Before it is sent: what comes from the earlier place may come at once.
    for (const Settlement& entry : entries)
      if (said.kind == SubscriptionKind::group && entry.verdict == Verdict::nack)
        to.subscription->set_back(entry.partition);
    to.subscription->settled(entries);
    try {
      return to.connection->request(detail::Settle{said.subscription, entries});
    } catch (const Error& error) {
      if (error.code() != "client.closed" && to.connection->failure()) throw TooLate();
      throw;
    }
  }

  /// Wait for the answer. Throws as `send`.
  std::vector<Refusal> refused_of(detail::PendingReply& reply) const {
    const Deadline deadline = detail::deadline_in(session->options().request_timeout);
    try {
      return Connection::expect<detail::Settled>(Connection::wait(reply, deadline)).first.refused;
    } catch (const Error& error) {
      // In a cluster, the leader may be lost, and the connection live on.
      if (error.code() == "connection.lost" || error.code().starts_with("peer.")) throw TooLate();
      throw;
    }
  }

  void settle_later(const std::shared_ptr<const detail::Origin>& origin, const Settlement& entry) {
    const Attachment to = latest();
    const detail::Subscribed said = to.subscription->said();
    if (said.kind == SubscriptionKind::reader || (said.kind == SubscriptionKind::shared && said.lease_ms == 0)) return;
    try {
      if (origin && origin->subscription.lock() != to.subscription) throw TooLate();
      detail::PendingReply reply = send(to, {entry});
      const std::lock_guard lock(mutex);
      settling.push_back(std::move(reply));
    } catch (const TooLate& error) {
      keep(too_late, error);
    } catch (const Error& error) {
      keep(refusal, error);
    }
    look_at_answers();
  }

  void keep(std::optional<Error>& first, const Error& error) {
    const std::lock_guard lock(mutex);
    if (!first) first = error;
  }

  /// Take the settlements that are answered, or all, and keep what the application is to hear of them.
  void look_at_answers(bool waits = false) {
    for (;;) {
      detail::PendingReply reply;
      {
        const std::lock_guard lock(mutex);
        if (settling.empty()) return;
        if (!waits && settling.front().wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
        reply = std::move(settling.front());
        settling.pop_front();
      }
      try {
        const auto refused = refused_of(reply);
        if (!refused.empty()) keep(refusal, Error(refused.front().code, refused.front().text));
      } catch (const TooLate& error) {
        keep(too_late, error);
      } catch (const Error& error) {
        keep(refusal, error);
      }
    }
  }

  void throw_first(std::optional<Error>& first) {
    const std::lock_guard lock(mutex);
    if (first) throw std::exchange(first, std::nullopt).value();
  }

  void throw_refusal() {
    look_at_answers();
    throw_first(refusal);
  }
};

namespace {

std::uint32_t to_ms(std::chrono::milliseconds time) noexcept {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(time.count(), 0, UINT32_MAX));
}

Settlement about(const Message& message, Verdict verdict,
                 std::chrono::milliseconds time = std::chrono::milliseconds(0), std::string_view reason = {}) {
  return {message.partition, message.delivery_id, message.offset(), message.record().next_offset(), verdict,
          to_ms(time),       std::string(reason)};
}

Settlement about(const Delivery& delivery, Verdict verdict,
                 std::chrono::milliseconds time = std::chrono::milliseconds(0), std::string_view reason = {}) {
  const bool is_leased = delivery.delivery_id != 0;
  const std::int64_t first = is_leased ? whole_lease : delivery.first_offset();
  return {delivery.partition, delivery.delivery_id, first, is_leased ? whole_lease : delivery.end_offset(), verdict,
          to_ms(time),        std::string(reason)};
}

}  // namespace

Consumer Client::consumer(ConsumerOptions options) const {
  auto state = std::make_unique<Consumer::State>(session_, std::move(options));
  const Deadline deadline = detail::deadline_in(session_->options().request_timeout);
  const auto connection = session_->wait_for_connection(deadline);
  if (!connection) throw session_->no_connection_in_time();
  if (!state->subscribe(connection, deadline))
    throw Error("request.timeout", "the broker did not answer in time", true);
  return Consumer(std::move(state));
}

Consumer::Consumer(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Consumer::Consumer(Consumer&&) noexcept = default;
Consumer& Consumer::operator=(Consumer&&) noexcept = default;
Consumer::~Consumer() = default;

SubscriptionKind Consumer::kind() const noexcept { return state_->latest().subscription->said().kind; }
std::uint32_t Consumer::number() const noexcept { return state_->latest().subscription->said().subscription; }
std::chrono::milliseconds Consumer::lease() const noexcept {
  return std::chrono::milliseconds(state_->latest().subscription->said().lease_ms);
}
std::vector<std::int32_t> Consumer::partitions() const { return state_->latest().subscription->partitions(); }

std::optional<Message> Consumer::next(std::chrono::milliseconds timeout) {
  state_->throw_refusal();
  return state_->next(detail::deadline_in(timeout));
}

std::optional<Delivery> Consumer::next_delivery(std::chrono::milliseconds timeout) {
  if (state_->current)
    throw std::logic_error("next_delivery in the middle of a delivery that next is taking records from");
  state_->throw_refusal();
  return state_->take(detail::deadline_in(timeout));
}

void Consumer::ack(const Message& message) { state_->settle_later(message.origin, about(message, Verdict::ack)); }
void Consumer::ack(const Delivery& delivery) { state_->settle_later(delivery.origin, about(delivery, Verdict::ack)); }
void Consumer::nack(const Message& message, std::chrono::milliseconds delay, std::string_view reason) {
  state_->settle_later(message.origin, about(message, Verdict::nack, delay, reason));
}
void Consumer::nack(const Delivery& delivery, std::chrono::milliseconds delay, std::string_view reason) {
  state_->settle_later(delivery.origin, about(delivery, Verdict::nack, delay, reason));
}
void Consumer::reject(const Message& message, std::string_view reason) {
  state_->settle_later(message.origin, about(message, Verdict::reject, std::chrono::milliseconds(0), reason));
}
void Consumer::reject(const Delivery& delivery, std::string_view reason) {
  state_->settle_later(delivery.origin, about(delivery, Verdict::reject, std::chrono::milliseconds(0), reason));
}
void Consumer::extend(const Message& message, std::chrono::milliseconds lease) {
  state_->settle_later(message.origin, about(message, Verdict::extend, lease));
}
void Consumer::extend(const Delivery& delivery, std::chrono::milliseconds lease) {
  state_->settle_later(delivery.origin, about(delivery, Verdict::extend, lease));
}

std::vector<Refusal> Consumer::settle(const std::vector<Settlement>& entries) {
  try {
    auto reply = State::send(state_->latest(), entries);
    return state_->refused_of(reply);
  } catch (const TooLate& error) {
    std::vector<Refusal> refused;
    for (std::uint32_t index = 0; index < entries.size(); ++index)
      refused.push_back({index, error.code(), error.text()});
    return refused;
  }
}

void Consumer::flush() {
  state_->look_at_answers(true);
  state_->throw_first(state_->refusal);
  state_->throw_first(state_->too_late);
}

void Consumer::close() {
  if (std::exchange(state_->closed, true)) return;
  const auto& [connection, subscription] = state_->attached;
  const std::uint32_t number = subscription->said().subscription;
  const std::vector<Settlement> unread = subscription->abandon();
  subscription->ended({"client.closed", "the consumer was closed"});
  state_->current.reset();
  connection->give_back(number, unread);
  flush();
  try {
    auto reply = connection->request(detail::Unsubscribe{number});
    connection->wait_for<detail::Done>(reply);
  } catch (const Error&) {
    if (!connection->failure()) throw;
  }
  connection->forget(*subscription);
}

}  // namespace linn
