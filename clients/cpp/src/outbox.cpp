#include "outbox.h"

#include <utility>

namespace linn::detail {
namespace {

/// The error for a batch that was sent, and is not sent again because of `error`.
Error may_be_stored(const Error& error) {
  return {"connection.lost", error.text() + "; the batch was sent, and may or may not be stored", true};
}

}  // namespace

Outbox::Outbox(Publish publish, const ClientOptions& options, std::shared_ptr<const Outage> outage)
    : publish_(std::move(publish)),
      request_timeout_(options.request_timeout),
      retries_max_(options.retries_max),
      outage_(std::move(outage)) {}

// --- by the application ---

std::shared_ptr<Shipment> Outbox::put(std::string batch) {
  auto shipment = std::make_shared<Shipment>();
  shipment->batch = std::make_shared<const std::string>(std::move(batch));
  shipment->deadline = deadline_in(request_timeout_);
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error(*closed_);
  std::erase_if(open_, [](const auto& known) { return known->is_done(); });
  open_.push_back(shipment);
  return shipment;
}

void Outbox::wait_until_done(Shipment& shipment, std::unique_lock<std::mutex>& lock) {
  const auto is_done = [&] { return shipment.is_done(); };
  if (!done_.wait_until(lock, shipment.deadline, is_done)) fail(shipment, overdue(shipment));
}

Placement Outbox::wait(Shipment& shipment) {
  std::unique_lock lock(mutex_);
  wait_until_done(shipment, lock);
  if (!shipment.error) return *shipment.placement;
  shipment.is_told = true;
  throw Error(*shipment.error);
}

std::optional<Error> Outbox::wait_for_untold(Shipment& shipment) {
  std::unique_lock lock(mutex_);
  wait_until_done(shipment, lock);
  return std::exchange(shipment.is_told, true) ? std::nullopt : shipment.error;
}

bool Outbox::is_done(const Shipment& shipment) const {
  const std::lock_guard lock(mutex_);
  return shipment.is_done() || Clock::now() >= shipment.deadline;
}

// --- sending ---

void Outbox::send_all(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard sending(sending_mutex_);
  fail_overdue();
  for (;;) {
    const auto [next, batch] = next_to_send();
    if (!next) return;
    // Looked at only now: it may be this connection that has given the shipment back meanwhile.
    if (connection->failure() || connection->drains()) return put_back(*next);
    const auto told = [self = weak_from_this(), shipment = next](Outcome outcome, bool is_lost) {
      if (const auto outbox = self.lock()) outbox->answered(*shipment, std::move(outcome), is_lost);
    };
    try {
      connection->publish(publish_, *batch, told);
    } catch (const Error& error) {
      const bool is_lost = connection->failure().has_value();
      answered(*next, error, is_lost);
      if (is_lost) return;  // The next connection's turn.
    }
  }
}

/// The first shipment that is not in flight, which it is from now on, and its batch.
std::pair<std::shared_ptr<Shipment>, std::shared_ptr<const std::string>> Outbox::next_to_send() {
  const std::lock_guard lock(mutex_);
  for (const auto& shipment : open_) {
    if (shipment->is_done() || shipment->is_in_flight) continue;
    shipment->is_in_flight = true;
    ++shipment->attempts;
    return {shipment, shipment->batch};
  }
  return {};
}

/// It was not sent after all.
void Outbox::put_back(Shipment& shipment) {
  const std::lock_guard lock(mutex_);
  shipment.is_in_flight = false;
  --shipment.attempts;
}

/// By whoever finds out first: the answer, or that the connection is lost, may be told more than once.
void Outbox::answered(Shipment& shipment, Outcome outcome, bool is_lost) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(shipment.is_in_flight, false) || shipment.is_done()) return;
  if (const auto* error = std::get_if<Error>(&outcome)) {
    const bool may_go_again = error->code() == "broker.stopping" || (is_lost && error->code() != "client.closed");
    if (may_go_again && (!retries_max_ || shipment.attempts <= *retries_max_)) return;
    fail(shipment, is_lost && may_go_again ? may_be_stored(*error) : *error);
    return;
  }
  const auto* published = std::get_if<Published>(&std::get<Reply>(outcome).message);
  if (published == nullptr || published->placements.size() != 1)
    return fail(shipment, {"protocol.malformed", "one batch was answered with another number of placements"});
  shipment.placement = published->placements.front();
  shipment.batch.reset();
  done_.notify_all();
}

// --- failing ---

/// Under `mutex_`.
void Outbox::fail(Shipment& shipment, const Error& error) {
  shipment.error = error;
  shipment.batch.reset();
  done_.notify_all();
}

void Outbox::fail_waiting(const Error& error) {
  const std::lock_guard lock(mutex_);
  for (const auto& shipment : open_)
    if (!shipment->is_done() && !shipment->is_in_flight)
      fail(*shipment, shipment->attempts > 0 && error.code() != "client.closed" ? may_be_stored(error) : error);
}

void Outbox::close(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = error;
  }
  fail_waiting(error);
}

/// Nothing is sent whose time is over.
void Outbox::fail_overdue() {
  const std::lock_guard lock(mutex_);
  for (const auto& shipment : open_)
    if (!shipment->is_done() && !shipment->is_in_flight && Clock::now() >= shipment->deadline)
      fail(*shipment, overdue(*shipment));
}

/// The error for a batch whose time is over.
Error Outbox::overdue(const Shipment& shipment) const {
  if (shipment.attempts > 0)
    return {"request.timeout", publish_.target + " did not confirm a batch in time; it may or may not be stored", true};
  return {"request.timeout", "a batch for " + publish_.target + " was not sent in time: " + outage_->text(), true};
}

}  // namespace linn::detail
