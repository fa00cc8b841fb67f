// A subscription's queue, its account of credit, and what a group's member must not see.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <linn/batch.h>

#include "bytes.h"
#include "check.h"
#include "subscription.h"

using namespace linn::detail;
using namespace std::chrono_literals;
using linn::Error;
using linn::SubscriptionKind;

namespace {

/// The head of a batch is all that is looked at.
std::string batch_of(std::int64_t first, std::uint32_t records, std::uint32_t span = 0) {
  std::string batch(136, '\0');
  store(batch.data() + 16, first);
  store(batch.data() + 52, records);
  store(batch.data() + 120, std::max(span, records));
  return batch;
}

void deliver(Subscription& subscription, std::int32_t partition, std::int64_t first, std::uint32_t records,
             std::uint32_t span = 0) {
  subscription.arrived(Deliver{7, partition, 1, 1}, {batch_of(first, records, span)});
}

/// First offset of what is next; -1 where nothing is.
std::int64_t next_of(Subscription& subscription) {
  const auto arrival = subscription.take(Clock::now());
  if (!arrival) return -1;
  subscription.release(arrival->records);
  return load<std::int64_t>(arrival->batches.front().data() + 16);
}

void credit_is_given_back_by_halves_or_when_idle() {
  Subscription subscription({10});
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
  Subscription subscription({10});
  subscription.opened({7, SubscriptionKind::shared, 1'000});
  for (int turn = 0; turn < 3; ++turn) deliver(subscription, 0, 0, 10);
  CHECK(next_of(subscription) == 0 && subscription.grant(true) == 0);
}

void what_waits_of_a_lease_that_is_over_is_dropped() {
  Subscription subscription({10});
  subscription.opened({7, SubscriptionKind::shared, 1'000});
  subscription.arrived(Deliver{7, 0, 1, 1}, {batch_of(0, 2)});
  subscription.arrived(Deliver{7, 0, 2, 1}, {batch_of(2, 2)});
  subscription.arrived(Deliver{7, 0, 1, 1}, {batch_of(4, 2)});
  CHECK(next_of(subscription) == 0 && subscription.hand_out(1));
  subscription.lease_ended({7, 1, 1});
  CHECK(subscription.hand_out(1));
  subscription.lease_ended({7, 0, 1});
  CHECK(!subscription.hand_out(2));
  CHECK(next_of(subscription) == 2 && subscription.hand_out(3));
  CHECK(next_of(subscription) == -1);
}

void more_than_the_credit_ends_the_connection() {
  Subscription subscription({10});
  subscription.opened({7, SubscriptionKind::shared, 0});
  deliver(subscription, 0, 0, 10);
  CHECK(code_of([&] { deliver(subscription, 0, 10, 1); }) == "protocol.malformed");
}

void the_end_is_told_after_what_arrived_each_time() {
  Subscription subscription({10});
  subscription.opened({7, SubscriptionKind::reader, 0});
  deliver(subscription, 0, 5, 1);
  subscription.ended(Error("topic.unknown", "deleted"));
  subscription.ended(Error("connection.lost", "later"));
  CHECK(next_of(subscription) == 5);
  for (int turn = 0; turn < 2; ++turn) CHECK(code_of([&] { next_of(subscription); }) == "topic.unknown");
}

Subscription& member(Subscription& subscription) {
  subscription.opened({7, SubscriptionKind::group, 0});
  subscription.assigned({7, 1, {0, 1}, {}});
  return subscription;
}

void a_member_sees_only_what_it_owns() {
  Subscription fresh({100});
  Subscription& subscription = member(fresh);
  deliver(subscription, 0, 0, 10);
  deliver(subscription, 1, 50, 10);
  CHECK(next_of(subscription) == 0 && subscription.hand_out(1));
  subscription.assigned({7, 2, {1}, {0}});
  deliver(subscription, 0, 10, 10);
  CHECK(!subscription.hand_out(2));
  CHECK(next_of(subscription) == 50 && subscription.hand_out(51) && next_of(subscription) == -1);
  CHECK(subscription.grant(true) == 30);  // What was dropped is given back as well.
}

void what_was_under_way_at_a_setting_back_is_dropped() {
  Subscription fresh({100});
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

/// A queue with leases of a minute whose consumer adapts, and when that began.
std::shared_ptr<Subscription> adapting(std::chrono::milliseconds renewal_max) {
  auto subscription = std::make_shared<Subscription>(Limits{prefetch_max, true, renewal_max});
  subscription->opened({7, SubscriptionKind::shared, 60'000});
  return subscription;
}

void a_consumer_of_a_queue_begins_with_a_few_and_gets_more_as_it_settles() {
  const Limits limits{prefetch_max, true, 0ms};
  CHECK(limits.first_credit() == 4);
  const auto subscription = adapting(0ms);
  std::int64_t next = 0;
  for (const std::uint32_t window : {4U, 8U, 16U}) {
    deliver(*subscription, 0, next, window);
    subscription->wants(Clock::now());
    CHECK(next_of(*subscription) == next);
    subscription->settled({{0, 1, next, next + window}});
    next += window;
    subscription->wants(Clock::now());
    CHECK(subscription->grant(true) == 2 * window && subscription->grant(true) == 0);
  }
}

void scattered_records_count_as_they_are_and_not_as_the_span_that_they_cover() {
  const auto subscription = adapting(1h);
  deliver(*subscription, 0, 0, 4, 400);
  const auto arrival = subscription->take(Clock::now());
  subscription->has_gaps(arrival->head, {0, 100, 200, 399});
  subscription->settled({{0, 1, 0, 100}});
  CHECK(subscription->hand_out(200));
  subscription->wants(Clock::now());
  CHECK(subscription->grant(true) == 0);  // One of four is settled: too few for a larger window.
  const auto entries = subscription->look(Clock::now() + 31s);
  CHECK(entries.size() == 2 && entries[0].verdict == linn::Verdict::release && entries[0].first == 200);
  CHECK(entries[1].verdict == linn::Verdict::extend);
}

void an_application_that_has_all_and_settles_nothing_gets_more() {
  const auto subscription = adapting(0ms);
  deliver(*subscription, 0, 0, 4);
  CHECK(!subscription->may_starve());
  CHECK(next_of(*subscription) == 0 && subscription->may_starve());
  subscription->starved();
  CHECK(subscription->grant(true) == 8);
}

void at_half_of_a_lease_what_is_unread_goes_back_and_what_is_held_is_renewed() {
  const auto subscription = adapting(1h);
  subscription->arrived(Deliver{7, 0, 1, 1}, {batch_of(10, 3)});
  subscription->arrived(Deliver{7, 0, 2, 1}, {batch_of(13, 2)});
  const auto arrival = subscription->take(Clock::now());
  CHECK(subscription->hand_out(11));
  const auto began = Clock::now();
  CHECK(subscription->next_look() <= began + 15s && subscription->look(began + 1s).empty());
  const auto entries = subscription->look(began + 31s);
  CHECK(entries.size() == 3);
  const auto is = [&](std::size_t index, std::uint64_t id, std::int64_t first, std::int64_t end,
                      linn::Verdict verdict) {
    const linn::Settlement& entry = entries[index];
    return entry.delivery_id == id && entry.first == first && entry.end == end && entry.verdict == verdict;
  };
  CHECK(is(0, 1, 11, 13, linn::Verdict::release) && is(1, 2, 13, 15, linn::Verdict::release));
  CHECK(is(2, 1, linn::whole_lease, linn::whole_lease, linn::Verdict::extend) && entries[2].ms == 60'000);
  CHECK(!subscription->hand_out(12) && next_of(*subscription) == -1);
  CHECK(subscription->look(began + 47s).empty());  // The lease is new.
}

void a_delivery_that_was_taken_whole_is_renewed_whole() {
  const auto subscription = adapting(1h);
  deliver(*subscription, 0, 0, 3);
  const auto arrival = subscription->take(Clock::now());
  const auto entries = subscription->look(Clock::now() + 31s);
  CHECK(entries.size() == 1 && entries[0].verdict == linn::Verdict::extend);
  CHECK(subscription->abandon().empty());
}

void a_lease_that_nobody_refers_to_is_not_renewed_and_none_for_ever() {
  for (const bool keeps : {false, true}) {
    const auto subscription = adapting(keeps ? 30s : 1h);
    subscription->arrived(Deliver{7, 0, 1, 1}, {batch_of(0, 1)});
    auto arrival = subscription->take(Clock::now());
    CHECK(subscription->hand_out(1));
    if (!keeps) arrival.reset();
    CHECK(subscription->look(Clock::now() + 31s).empty());
  }
}

void records_that_waited_longer_than_their_lease_are_not_handed_out() {
  const auto subscription = std::make_shared<Subscription>(Limits{10});
  subscription->opened({7, SubscriptionKind::shared, 1});
  subscription->arrived(Deliver{7, 0, 1, 1}, {batch_of(0, 1)});
  const auto over = Clock::now() + 2ms;
  while (Clock::now() < over) std::this_thread::yield();
  CHECK(!subscription->take(Clock::now()));
}

void a_consumer_that_leaves_gives_back_unread_records() {
  const auto subscription = adapting(1h);
  deliver(*subscription, 0, 0, 3);
  const auto arrival = subscription->take(Clock::now());
  CHECK(subscription->hand_out(1));
  const auto entries = subscription->abandon();
  CHECK(entries.size() == 1 && entries[0].first == 1 && entries[0].end == 3);
  CHECK(entries[0].verdict == linn::Verdict::release && !subscription->hand_out(2));
}

void with_the_connection_goes_what_was_leased_but_not_a_reader_s() {
  const auto queue = adapting(1h);
  deliver(*queue, 0, 0, 2);
  queue->lost(Error("connection.lost", "gone"));
  CHECK(queue->is_lost() && code_of([&] { next_of(*queue); }) == "connection.lost" && queue->ends().empty());
  Subscription reader({10});
  reader.opened({7, SubscriptionKind::reader, 0});
  deliver(reader, 3, 5, 2);
  reader.lost(Error("connection.lost", "gone"));
  CHECK(next_of(reader) == 5 && (reader.ends() == std::map<std::int32_t, std::int64_t>{{3, 7}}));
}

void nothing_is_kept_for_nobody() {
  Subscription subscription({10});
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
              {"a consumer of a queue begins with a few, and gets more as it settles",
               a_consumer_of_a_queue_begins_with_a_few_and_gets_more_as_it_settles},
              {"scattered records count as they are, and not as the span that they cover",
               scattered_records_count_as_they_are_and_not_as_the_span_that_they_cover},
              {"an application that has all and settles nothing gets more",
               an_application_that_has_all_and_settles_nothing_gets_more},
              {"at half of a lease what is unread goes back, and what is held is renewed",
               at_half_of_a_lease_what_is_unread_goes_back_and_what_is_held_is_renewed},
              {"a delivery that was taken whole is renewed whole", a_delivery_that_was_taken_whole_is_renewed_whole},
              {"a lease that nobody refers to is not renewed, and none for ever",
               a_lease_that_nobody_refers_to_is_not_renewed_and_none_for_ever},
              {"records that waited longer than their lease are not handed out",
               records_that_waited_longer_than_their_lease_are_not_handed_out},
              {"a consumer that leaves gives back unread records", a_consumer_that_leaves_gives_back_unread_records},
              {"with the connection goes what was leased, but not a reader's",
               with_the_connection_goes_what_was_leased_but_not_a_reader_s},
              {"nothing is kept for nobody", nothing_is_kept_for_nobody}});
}
