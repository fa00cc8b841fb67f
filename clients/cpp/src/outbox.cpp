#include "outbox.h"

#include <algorithm>
#include <utility>

#include "backoff.h"
#include "seal.h"
#include "session.h"

namespace linn::detail {
namespace {

/// The error for a batch that was sent, and is not sent again because of `error`.
Error may_be_stored(const Error& error) {
  return {"connection.lost", error.text() + "; the batch was sent, and may or may not be stored", true};
}

/// The error for what the broker refuses: what was sent before without an answer may be stored all the same.
Error refused_as(const Shipment& shipment, const Error& error) {
  if (shipment.unanswered == 0 || error.code() == "client.closed") return error;
  return {"connection.lost",
          "it was sent before the connection was lost, and may or may not be stored; sent again, it failed: " +
              std::string(error.what()),
          true};
}

/// Whether a batch was refused because one before it is not stored.
bool is_out_of_order(const std::optional<Error>& refusal) {
  return refusal && refusal->code() == "producer.out_of_order";
}

}  // namespace

Outbox::Outbox(Publish publish, const ClientOptions& options, std::shared_ptr<const Outage> outage,
               std::shared_ptr<Alarm> alarm, std::shared_ptr<Leaders> leaders, std::unique_ptr<Lane> lane)
    : publish_(std::move(publish)),
      options_(options),
      outage_(std::move(outage)),
      alarm_(std::move(alarm)),
      leaders_(std::move(leaders)),
      lane_(std::move(lane)) {
  if (publish_.to_exchange) return;
  leaders_->watch(publish_.target, Clock::now());
  alarm_->ring();
}

Outbox::~Outbox() {
  if (!publish_.to_exchange) leaders_->unwatch(publish_.target);
}

// --- by the application ---

std::shared_ptr<Shipment> Outbox::put(std::string batch) {
  auto shipment = std::make_shared<Shipment>();
  shipment->batch = std::make_shared<std::string>(std::move(batch));
  shipment->deadline = deadline_in(options_.request_timeout);
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error(*closed_);
  std::erase_if(open_, [](const auto& known) { return known->is_done(); });
  open_.push_back(shipment);
  return shipment;
}

void Outbox::wait_until_done(Shipment& shipment, std::unique_lock<std::mutex>& lock) {
  const auto is_done = [&] { return shipment.is_done(); };
  if (done_.wait_until(lock, shipment.deadline, is_done)) return;
  fail(shipment, overdue(shipment));
  go_on();
}

Placement Outbox::wait(Shipment& shipment) {
  std::unique_lock lock(mutex_);
  wait_until_done(shipment, lock);
  const auto records_refused = refusal_in(shipment);
  if (!shipment.error && !records_refused) return *shipment.placement;
  shipment.is_told = true;
  if (records_refused) throw RecordsRefused(*records_refused);
  throw Error(*shipment.error);
}

/// What some records of a batch were refused with, all the others of which are stored.
std::optional<RecordsRefused> Outbox::refusal_in(const Shipment& shipment) {
  if (!shipment.placement || shipment.placement->refused.empty()) return std::nullopt;
  const RefusedRecords& first = shipment.placement->refused.front();
  return RecordsRefused(refused_as(shipment, {first.code, first.text}), *shipment.placement);
}

std::optional<Error> Outbox::wait_for_untold(Shipment& shipment) {
  std::unique_lock lock(mutex_);
  wait_until_done(shipment, lock);
  if (std::exchange(shipment.is_told, true)) return std::nullopt;
  if (const auto records_refused = refusal_in(shipment)) return Error(*records_refused);
  return shipment.error;
}

bool Outbox::is_done(const Shipment& shipment) const {
  const std::lock_guard lock(mutex_);
  return shipment.is_done() || Clock::now() >= shipment.deadline;
}

// --- sending ---

void Outbox::send_all(Session& session) {
  const std::lock_guard sending(sending_mutex_);
  look_at_time();
  const auto connection = publish_.to_exchange ? session.connection() : session.connection_for(publish_.target);
  if (!connection || !turn_to(*connection)) return;
  for (;;) {
    const auto [next, batch, numbers] = next_to_send();
    if (!next) return;
    if (numbers) number(*batch, *numbers);
    // Looked at only now: it may be this connection that has given the shipment back meanwhile.
    if (connection->failure() || connection->drains()) return put_back(*next);
    const auto told = [self = weak_from_this(), shipment = next](Outcome outcome, bool is_lost) {
      if (const auto outbox = self.lock()) outbox->answered(*shipment, std::move(outcome), is_lost);
    };
    try {
      connection->publish(publish_, *batch, told);
    } catch (const Error& error) {
      const bool is_lost = connection->failure() || error.code() == "connection.lost";
      answered(*next, error, is_lost);
      if (is_lost) return;  // The next connection's turn.
    }
  }
}

/// Whether batches may go over this connection from now on: none is in flight on another one.
bool Outbox::turn_to(const Connection& connection) {
  const std::lock_guard lock(mutex_);
  turns_ = at_ != &connection && first_in_flight() != nullptr;
  if (!turns_) at_ = &connection;
  return !turns_;
}

/// The first shipment that is not in flight, which it is from now on.
Outbox::Next Outbox::next_to_send() {
  const std::lock_guard lock(mutex_);
  if (held_until_ != not_held) return {};
  for (const auto& shipment : open_) {
    if (shipment->is_done() || shipment->is_in_flight) continue;
    Next next{shipment, shipment->batch, std::nullopt};
    if (!shipment->is_numbered) {
      const std::uint32_t records = record_count(*next.batch);
      if (lane_ && lane_->has_to_begin(records)) {
        if (first_in_flight() != nullptr) {
          hold();
          return {};
        }
        try {
          lane_->begin();
        } catch (const Error& error) {
          fail(*shipment, error);
          continue;
        }
      }
      next.numbers = lane_ ? lane_->number(records) : ProducerNumbers{};
      shipment->is_numbered = true;
    }
    shipment->is_in_flight = true;
    ++shipment->attempts;
    ++shipment->unanswered;
    return next;
  }
  return {};
}

/// It was not sent after all: the connection takes no more, and there may be another one.
void Outbox::put_back(Shipment& shipment) {
  const std::lock_guard lock(mutex_);
  shipment.is_in_flight = false;
  --shipment.attempts;
  --shipment.unanswered;
  alarm_->ring();
}

/// By whoever finds out first: the answer, or that the connection is lost, may be told more than once.
void Outbox::answered(Shipment& shipment, Outcome outcome, bool is_lost) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(shipment.is_in_flight, false) || shipment.is_done()) return;
  if (const auto* error = std::get_if<Error>(&outcome)) {
    refused(shipment, *error, is_lost);
  } else if (const auto* published = std::get_if<Published>(&std::get<Reply>(outcome).message);
             published != nullptr && published->placements.size() == 1) {
    --shipment.unanswered;
    shipment.placement = published->placements.front();
    const Placement& placed = *shipment.placement;
    if (!publish_.to_exchange &&
        leaders_->confirmed(publish_.target, placed.topic_id, placed.leader_epoch, Clock::now()))
      alarm_->ring();
    shipment.batch.reset();
    done_.notify_all();
  } else {
    fail(shipment, {"protocol.malformed", "one batch was answered with another number of placements"});
  }
  go_on();
}

/// Keep a batch that may be sent again, fail another one. Under `mutex_`.
void Outbox::refused(Shipment& shipment, const Error& error, bool is_lost) {
  shipment.refusal = is_lost ? std::nullopt : std::optional(error);
  if (!is_lost) --shipment.unanswered;
  if (error.code() == "partition.not_leader" && !publish_.to_exchange &&
      leaders_->not_led(publish_.target, Clock::now()))
    alarm_->ring();
  if (is_out_of_order(shipment.refusal)) --shipment.attempts;
  const bool may_go_again = is_lost ? error.code() != "client.closed" : error.retriable() && !closed_;
  if (!may_go_again || (options_.retries_max && shipment.attempts > *options_.retries_max))
    fail(shipment, is_lost && may_go_again ? may_be_stored(error) : refused_as(shipment, error));
  else if (!is_lost)
    hold();
}

// --- holding ---

/// Send nothing until what is in flight has been answered, and then what was refused first.
void Outbox::hold() {
  held_until_ = Clock::time_point::max();
  go_on();
}

/// Have the alarm ring when a hold ends, or a wait for another connection. Call it after whatever may have ended a
/// flight.
void Outbox::go_on() {
  if (turns_ && first_in_flight() == nullptr) {
    turns_ = false;
    alarm_->ring();
  }
  if (held_until_ == not_held) return;
  if (const Shipment* oldest = first_in_flight()) return alarm_->ring_at(oldest->deadline);
  if (held_until_ == Clock::time_point::max()) {
    held_until_ = Clock::now();
    const Shipment* first = first_waiting();
    if (first != nullptr && first->refusal && !is_out_of_order(first->refusal))
      held_until_ += backoff_after(std::max<std::uint64_t>(1, first->attempts) - 1, options_, random_);
  }
  alarm_->ring_at(held_until_);
}

/// End a hold. If the first batch is out of order although nothing is in flight, one before it has failed: then neither
/// it nor any behind it is stored, and all get new numbers.
void Outbox::release() {
  held_until_ = not_held;
  const Shipment* first = first_waiting();
  if (!lane_ || first == nullptr || !is_out_of_order(first->refusal)) return;
  lane_->end_epoch();
  for (const auto& shipment : open_) {
    shipment->is_numbered = false;
    shipment->refusal.reset();
  }
}

Shipment* Outbox::first_waiting() const {
  for (const auto& shipment : open_)
    if (!shipment->is_done() && !shipment->is_in_flight) return shipment.get();
  return nullptr;
}

Shipment* Outbox::first_in_flight() const {
  for (const auto& shipment : open_)
    if (shipment->is_in_flight) return shipment.get();
  return nullptr;
}

// --- failing ---

/// If the batch has numbers, no other can follow them. Under `mutex_`.
void Outbox::fail(Shipment& shipment, const Error& error) {
  if (lane_ && shipment.is_numbered) lane_->end_epoch();
  shipment.is_in_flight = false;
  shipment.error = error;
  shipment.batch.reset();
  done_.notify_all();
}

void Outbox::fail_waiting(const Error& error) {
  const std::lock_guard lock(mutex_);
  for (const auto& shipment : open_)
    if (!shipment->is_done() && !shipment->is_in_flight)
      fail(*shipment, shipment->unanswered > 0 && error.code() != "client.closed" ? may_be_stored(error) : error);
  go_on();
}

void Outbox::close(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = error;
  }
  fail_waiting(error);
}

/// Fail what is overdue, and end a hold whose time has come.
void Outbox::look_at_time() {
  const std::lock_guard lock(mutex_);
  for (const auto& shipment : open_)
    if (!shipment->is_done() && Clock::now() >= shipment->deadline) fail(*shipment, overdue(*shipment));
  go_on();
  if (held_until_ != not_held && held_until_ <= Clock::now()) release();
}

/// The error for a batch whose time is over. Under `mutex_`.
Error Outbox::overdue(const Shipment& shipment) const {
  if (shipment.unanswered > 0)
    return {"request.timeout", publish_.target + " did not confirm a batch in time; it may or may not be stored", true};
  if (shipment.refusal && !is_out_of_order(shipment.refusal)) return *shipment.refusal;
  const bool waits = held_until_ != not_held || turns_;
  const std::string reason = waits ? "those before it were not confirmed" : outage_->text();
  return {"request.timeout", "a batch for " + publish_.target + " was not sent in time: " + reason, true};
}

}  // namespace linn::detail
