#include <linn/consumer.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <linn/client.h>

#include "connection.h"
#include "subscription.h"

namespace linn {

using detail::Connection;
using detail::Subscription;

std::size_t Delivery::size() const noexcept {
  std::size_t records = 0;
  for (const Batch& batch : batches) records += batch.size();
  return records;
}

struct Consumer::State {
  std::shared_ptr<Connection> connection;
  std::shared_ptr<Subscription> subscription;
  /// What `next` is in the middle of.
  std::optional<Delivery> current;
  std::size_t batch_index = 0;
  std::size_t record_index = 0;
  std::uint64_t reading = 0;
  /// Settlements that nobody waits for, oldest first.
  std::mutex settling_mutex;
  std::deque<detail::PendingReply> settling;
  std::optional<Error> untold;
  bool closed = false;

  State(std::shared_ptr<Connection> used, std::shared_ptr<Subscription> made)
      : connection(std::move(used)), subscription(std::move(made)) {}

  // --- taking ---

  std::optional<Delivery> take(std::chrono::milliseconds timeout) {
    give_credit(subscription->empty());
    auto arrival = subscription->take(detail::deadline_in(timeout));
    if (!arrival) return std::nullopt;
    const std::uint32_t records = arrival->records;
    reading = arrival->reading;
    try {
      Delivery delivery = checked(std::move(*arrival));
      subscription->release(records);
      return delivery;
    } catch (const Error&) {
      subscription->release(records);
      throw;
    }
  }

  Delivery checked(detail::Arrival arrival) const {
    Delivery delivery{arrival.head.partition, arrival.head.delivery_id, arrival.head.attempt, {}};
    for (std::string& message : arrival.batches) {
      Batch batch = Batch::decode(std::move(message), connection->options().receive_bytes_max);
      if (!batch.stamped()) throw Error("batch.corrupt", "the broker delivered a batch without a stamp", true);
      if (!delivery.batches.empty() && batch.first_offset() != delivery.end_offset())
        throw Error("batch.malformed", "the batches of a delivery have a gap");
      delivery.batches.push_back(std::move(batch));
    }
    return delivery;
  }

  std::optional<Message> next(std::chrono::milliseconds timeout) {
    if (current && (subscription->reading(current->partition) != reading || subscription->lease_is_over()))
      current.reset();
    if (!current) {
      current = take(timeout);
      if (!current) return std::nullopt;
      batch_index = record_index = 0;
    }
    Message message{current->batches[batch_index], record_index, current->partition, current->delivery_id,
                    current->attempt};
    if (++record_index == message.batch.size()) {
      record_index = 0;
      if (++batch_index == current->batches.size()) current.reset();
    }
    return message;
  }

  /// A connection that is lost is told by the subscription, behind what has arrived.
  void give_credit(bool idle) {
    const std::uint32_t records = subscription->grant(idle);
    if (records == 0) return;
    try {
      connection->post(detail::Credit{subscription->said().subscription, records});
    } catch (const Error&) {
    }
  }

  // --- settling ---

  detail::PendingReply send(const std::vector<Settlement>& entries) {
    const detail::Subscribed said = subscription->said();
    // Before it is sent: what comes from the earlier place may come at once.
    for (const Settlement& entry : entries)
      if (said.kind == SubscriptionKind::group && entry.verdict == Verdict::nack)
        subscription->set_back(entry.partition);
    return connection->request(detail::Settle{said.subscription, entries});
  }

  void settle_later(const Settlement& entry) {
    const detail::Subscribed said = subscription->said();
    if (said.kind == SubscriptionKind::reader || (said.kind == SubscriptionKind::shared && said.lease_ms == 0)) return;
    auto reply = send({entry});
    const std::lock_guard lock(settling_mutex);
    settling.push_back(std::move(reply));
    collect();
  }

  /// Look at the settlements that are answered. Under `settling_mutex`.
  void collect() {
    while (!settling.empty() && settling.front().wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      keep(refusal_of(settling.front()));
      settling.pop_front();
    }
  }

  std::optional<Error> refusal_of(detail::PendingReply& reply) const {
    try {
      const auto settled = connection->wait_for<detail::Settled>(reply);
      if (settled.refused.empty()) return std::nullopt;
      return Error(settled.refused.front().code, settled.refused.front().text);
    } catch (const Error& error) {
      return error;
    }
  }

  /// The first one, for the application to hear of. Under `settling_mutex`.
  void keep(const std::optional<Error>& refusal) {
    if (!untold) untold = refusal;
  }

  void throw_refusal() {
    const std::lock_guard lock(settling_mutex);
    collect();
    if (untold) throw std::exchange(untold, std::nullopt).value();
  }

  void wait_for_settlements() {
    std::unique_lock lock(settling_mutex);
    auto waiting = std::exchange(settling, {});
    lock.unlock();
    std::optional<Error> first;
    for (auto& reply : waiting) {
      const auto refusal = refusal_of(reply);
      if (!first) first = refusal;
    }
    lock.lock();
    keep(first);
  }
};

namespace {

std::uint32_t to_ms(std::chrono::milliseconds time) noexcept {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(time.count(), 0, UINT32_MAX));
}

Settlement about(const Message& message, Verdict verdict,
                 std::chrono::milliseconds time = std::chrono::milliseconds(0)) {
  return {message.partition, message.delivery_id, message.offset(), message.offset() + 1, verdict, to_ms(time)};
}

Settlement about(const Delivery& delivery, Verdict verdict,
                 std::chrono::milliseconds time = std::chrono::milliseconds(0)) {
  return {delivery.partition, delivery.delivery_id, delivery.first_offset(), delivery.end_offset(), verdict,
          to_ms(time)};
}

}  // namespace

Consumer Client::consumer(ConsumerOptions options) const {
  auto subscription = std::make_shared<Subscription>(options.credit);
  auto reply = connection_->request(options, subscription);
  try {
    connection_->wait_for<detail::Subscribed>(reply);
  } catch (const Error&) {
    connection_->unsubscribe(subscription);
    throw;
  }
  return Consumer(std::make_unique<Consumer::State>(connection_, std::move(subscription)));
}

Consumer::Consumer(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Consumer::Consumer(Consumer&&) noexcept = default;
Consumer& Consumer::operator=(Consumer&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Consumer::~Consumer() {
  if (state_) state_->connection->unsubscribe(state_->subscription);
}

SubscriptionKind Consumer::kind() const noexcept { return state_->subscription->said().kind; }
std::uint32_t Consumer::number() const noexcept { return state_->subscription->said().subscription; }
std::chrono::milliseconds Consumer::lease() const noexcept {
  return std::chrono::milliseconds(state_->subscription->said().lease_ms);
}
std::vector<std::int32_t> Consumer::partitions() const { return state_->subscription->partitions(); }

std::optional<Message> Consumer::next(std::chrono::milliseconds timeout) {
  state_->throw_refusal();
  return state_->next(timeout);
}

std::optional<Delivery> Consumer::next_delivery(std::chrono::milliseconds timeout) {
  if (state_->current)
    throw std::logic_error("next_delivery in the middle of a delivery that next is taking records from");
  state_->throw_refusal();
  return state_->take(timeout);
}

void Consumer::ack(const Message& message) { state_->settle_later(about(message, Verdict::ack)); }
void Consumer::ack(const Delivery& delivery) { state_->settle_later(about(delivery, Verdict::ack)); }
void Consumer::nack(const Message& message, std::chrono::milliseconds delay) {
  state_->settle_later(about(message, Verdict::nack, delay));
}
void Consumer::nack(const Delivery& delivery, std::chrono::milliseconds delay) {
  state_->settle_later(about(delivery, Verdict::nack, delay));
}
void Consumer::reject(const Message& message) { state_->settle_later(about(message, Verdict::reject)); }
void Consumer::reject(const Delivery& delivery) { state_->settle_later(about(delivery, Verdict::reject)); }
void Consumer::extend(const Message& message, std::chrono::milliseconds lease) {
  state_->settle_later(about(message, Verdict::extend, lease));
}
void Consumer::extend(const Delivery& delivery, std::chrono::milliseconds lease) {
  state_->settle_later(about(delivery, Verdict::extend, lease));
}

std::vector<Refusal> Consumer::settle(const std::vector<Settlement>& entries) {
  auto reply = state_->send(entries);
  return state_->connection->wait_for<detail::Settled>(reply).refused;
}

void Consumer::flush() {
  state_->wait_for_settlements();
  state_->throw_refusal();
}

void Consumer::close() {
  if (std::exchange(state_->closed, true)) return;
  flush();
  auto reply = state_->connection->request(detail::Unsubscribe{number()});
  state_->connection->wait_for<detail::Done>(reply);
  state_->connection->forget(*state_->subscription);
}

}  // namespace linn
