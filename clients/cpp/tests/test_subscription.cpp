// A subscription's queue, its account of credit, and what a group's member must not see.
#include <string>
#include <vector>

#include <linn/batch.h>

#include "bytes.h"
#include "check.h"
#include "subscription.h"

using namespace linn::detail;
using linn::Error;
using linn::SubscriptionKind;

namespace {

/// The head of a batch is all that is looked at.
std::string batch_of(std::int64_t first, std::uint32_t records) {
  std::string batch(120, '\0');
  store(batch.data() + 16, first);
  store(batch.data() + 52, records);
  return batch;
}

void deliver(Subscription& subscription, std::int32_t partition, std::int64_t first, std::uint32_t records) {
  subscription.arrived(Deliver{7, partition, 1, 1}, {batch_of(first, records)});
}

/// First offset of what is next; -1 where nothing is.
std::int64_t next_of(Subscription& subscription) {
  const auto arrival = subscription.take(Clock::now());
  if (!arrival) return -1;
  subscription.release(arrival->records);
  return load<std::int64_t>(arrival->batches.front().data() + 16);
}

void credit_is_given_back_by_halves_or_when_idle() {
  Subscription subscription(10);
  subscription.opened({7, SubscriptionKind::shared, 0});
  deliver(subscription, 0, 0, 10);
  CHECK(subscription.grant(true) == 0);
  subscription.release(3);
  CHECK(subscription.grant(false) == 0 && subscription.grant(true) == 3);
  subscription.release(6);
  CHECK(subscription.grant(false) == 6 && subscription.grant(false) == 0);
  subscription.release(100);
  CHECK(subscription.grant(true) == 1);  // Nothing is given back twice.
}

void where_there_are_leases_nobody_counts_here() {
  Subscription subscription(10);
  subscription.opened({7, SubscriptionKind::shared, 1'000});
  for (int turn = 0; turn < 3; ++turn) deliver(subscription, 0, 0, 10);
  CHECK(next_of(subscription) == 0 && subscription.grant(true) == 0);
}

void what_waits_of_a_lease_that_is_over_is_dropped() {
  Subscription subscription(10);
  subscription.opened({7, SubscriptionKind::shared, 1'000});
  subscription.arrived(Deliver{7, 0, 1, 1}, {batch_of(0, 2)});
  subscription.arrived(Deliver{7, 0, 2, 1}, {batch_of(2, 2)});
  subscription.arrived(Deliver{7, 0, 1, 1}, {batch_of(4, 2)});
  CHECK(next_of(subscription) == 0 && !subscription.lease_is_over());
  subscription.lease_ended({7, 1, 1});
  CHECK(!subscription.lease_is_over());
  subscription.lease_ended({7, 0, 1});
  CHECK(subscription.lease_is_over());
  CHECK(next_of(subscription) == 2 && !subscription.lease_is_over());
  CHECK(next_of(subscription) == -1);
}

void more_than_the_credit_ends_the_connection() {
  Subscription subscription(10);
  subscription.opened({7, SubscriptionKind::shared, 0});
  deliver(subscription, 0, 0, 10);
  CHECK(code_of([&] { deliver(subscription, 0, 10, 1); }) == "protocol.malformed");
}

void the_end_is_told_after_what_arrived_each_time() {
  Subscription subscription(10);
  subscription.opened({7, SubscriptionKind::reader, 0});
  deliver(subscription, 0, 5, 1);
  subscription.ended(Error("topic.unknown", "deleted"));
  subscription.ended(Error("connection.lost", "later"));
  CHECK(next_of(subscription) == 5);
  for (int turn = 0; turn < 2; ++turn) CHECK(code_of([&] { next_of(subscription); }) == "topic.unknown");
}

Subscription& member(Subscription& subscription) {
  subscription.opened({7, SubscriptionKind::group, 0});
  subscription.assigned({7, 1, {0, 1}});
  return subscription;
}

void a_member_sees_only_what_it_owns() {
  Subscription fresh(100);
  Subscription& subscription = member(fresh);
  deliver(subscription, 0, 0, 10);
  deliver(subscription, 1, 50, 10);
  const std::uint64_t reading = subscription.reading(0);
  subscription.assigned({7, 2, {1}});
  deliver(subscription, 0, 10, 10);
  CHECK(subscription.reading(0) != reading && subscription.reading(1) == 0);
  CHECK(next_of(subscription) == 50 && next_of(subscription) == -1);
  CHECK(subscription.grant(true) == 30);  // What was dropped is given back as well.
}

void what_was_under_way_at_a_setting_back_is_dropped() {
  Subscription fresh(100);
  Subscription& subscription = member(fresh);
  deliver(subscription, 0, 0, 10);
  deliver(subscription, 0, 10, 10);
  deliver(subscription, 1, 0, 5);
  CHECK(next_of(subscription) == 0);
  subscription.set_back(0);
  deliver(subscription, 0, 20, 10);
  deliver(subscription, 0, 30, 10);
  deliver(subscription, 0, 4, 10);
  deliver(subscription, 0, 14, 10);
  CHECK(next_of(subscription) == 0);  // Of partition 1, which was not set back.
  CHECK(next_of(subscription) == 4 && next_of(subscription) == 14 && next_of(subscription) == -1);
}

void nothing_is_kept_for_nobody() {
  Subscription subscription(10);
  subscription.opened({7, SubscriptionKind::shared, 1'000});
  subscription.abandon();
  deliver(subscription, 0, 0, 5);
  CHECK(subscription.empty() && subscription.grant(true) == 0);
}

}  // namespace

int main() {
  return run({{"credit is given back by halves, or when idle", credit_is_given_back_by_halves_or_when_idle},
              {"where there are leases nobody counts here", where_there_are_leases_nobody_counts_here},
              {"what waits of a lease that is over is dropped", what_waits_of_a_lease_that_is_over_is_dropped},
              {"more than the credit ends the connection", more_than_the_credit_ends_the_connection},
              {"the end is told after what arrived, each time", the_end_is_told_after_what_arrived_each_time},
              {"a member sees only what it owns", a_member_sees_only_what_it_owns},
              {"what was under way at a setting back is dropped", what_was_under_way_at_a_setting_back_is_dropped},
              {"nothing is kept for nobody", nothing_is_kept_for_nobody}});
}
