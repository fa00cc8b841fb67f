// A consumer against a scripted broker: credit, settlements, refusals, and deliveries that are not to be handed out.
#include <chrono>
#include <string>
#include <vector>

#include <linn/linn.h>

#include "bytes.h"
#include "check.h"
#include "crc32c.h"
#include "scripted_broker.h"

using namespace std::chrono_literals;
using linn::Client;
using linn::Consumer;

namespace {

/// A stored batch of so many records.
std::string batch_of(std::int64_t first, std::size_t records) {
  linn::BatchBuilder builder;
  for (std::size_t index = 0; index < records; ++index)
    builder.add(std::to_string(first + static_cast<std::int64_t>(index)));
  std::string batch = builder.seal();
  linn::detail::store(batch.data() + 16, first);
  linn::detail::store(batch.data() + 44, linn::detail::crc32c(std::string_view(batch).substr(16, 28)));
  return batch;
}

void subscribe(Peer& peer, wire::SubscriptionKind kind, std::uint32_t lease_ms) {
  peer.welcome();
  peer.send(peer.read().correlation, [&](wire::Frame::Builder root) {
    auto said = root.initSubscribed();
    said.setSubscription(5);
    said.setKind(kind);
    said.setLeaseMs(lease_ms);
  });
}

void deliver(Peer& peer, const std::vector<std::string>& batches) {
  peer.send(0, [&](wire::Frame::Builder root) {
    root.setBatches(static_cast<std::uint16_t>(batches.size()));
    auto said = root.initDeliver();
    said.setSubscription(5);
    said.setDeliveryId(9);
    said.setAttempt(1);
  });
  for (const std::string& batch : batches) peer.send_bytes(batch);
}

void settled(Peer& peer, std::uint64_t correlation, const char* refusal = nullptr) {
  peer.send(correlation, [&](wire::Frame::Builder root) {
    auto said = root.initSettled();
    if (refusal != nullptr) said.initRefused(1)[0].setCode(refusal);
  });
}

void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

void records_come_in_order_and_the_broker_counts_what_is_held() {
  ScriptedBroker broker([](Peer& peer) {
    subscribe(peer, wire::SubscriptionKind::SHARED, 30'000);
    deliver(peer, {batch_of(7, 2), batch_of(9, 2)});
    for (int count = 0; count < 2; ++count) settled(peer, peer.read().correlation);
    const linn::FrameContent next = peer.read();
    expect(next.member == "unsubscribe", "where there are leases nobody gives credit back");
    peer.send(next.correlation, [](wire::Frame::Builder root) { root.setDone(); });
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url());
  Consumer consumer = client.consumer({.topic = "t", .prefetch = 4});
  for (const std::int64_t offset : {7, 8, 9, 10}) {
    const auto message = consumer.next(10s);
    CHECK(message && message->offset() == offset && message->delivery_id == 9 && message->attempt == 1);
    CHECK(message->record().value() == std::to_string(offset));
    if (offset < 9) consumer.ack(*message);
  }
  consumer.close();
  client.close();
  broker.finish();
}

void what_waits_of_a_lease_that_is_over_is_not_handed_out() {
  ScriptedBroker broker([](Peer& peer) {
    subscribe(peer, wire::SubscriptionKind::SHARED, 30'000);
    deliver(peer, {batch_of(0, 2)});
    deliver(peer, {batch_of(2, 2)});
    settled(peer, peer.read().correlation);
    for (const std::uint64_t over : {std::uint64_t{9}, std::uint64_t{77}})
      peer.send(0, [&](wire::Frame::Builder root) {
        auto said = root.initLeaseEnded();
        said.setSubscription(5);
        said.setDeliveryId(over);
      });
    settled(peer, peer.read().correlation);
    deliver(peer, {batch_of(0, 1)});
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url());
  Consumer consumer = client.consumer({.topic = "t", .prefetch = 4});
  const auto message = consumer.next(10s);
  CHECK(message->offset() == 0);
  consumer.ack(*message);
  consumer.flush();
  consumer.ack(*message);
  consumer.flush();  // By now it knows.
  CHECK(consumer.next(10s)->offset() == 0);
  CHECK(!consumer.next(1ms));
}

void a_refusal_that_nobody_waited_for_is_told_once() {
  ScriptedBroker broker([](Peer& peer) {
    subscribe(peer, wire::SubscriptionKind::SHARED, 30'000);
    deliver(peer, {batch_of(0, 2)});
    settled(peer, peer.read().correlation, "delivery.not_current");
    const auto second = peer.read().correlation;
    settled(peer, second, "delivery.not_current");
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url());
  Consumer consumer = client.consumer({.topic = "t"});
  const auto message = consumer.next(10s);
  consumer.ack(*message);
  CHECK(code_of([&] { consumer.flush(); }) == "delivery.not_current");
  consumer.flush();
  const linn::Settlement entry{.delivery_id = 9, .first = 1, .end = 2};
  CHECK(consumer.settle({entry}).at(0).code == "delivery.not_current");
  CHECK(consumer.next(0ms)->offset() == 1);
}

void next_tells_a_refusal_too() {
  ScriptedBroker broker([](Peer& peer) {
    subscribe(peer, wire::SubscriptionKind::SHARED, 30'000);
    deliver(peer, {batch_of(0, 2)});
    settled(peer, peer.read().correlation, "delivery.not_current");
    peer.found(peer.read().correlation, 1);
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url());
  Consumer consumer = client.consumer({.topic = "t"});
  consumer.ack(*consumer.next(10s));
  client.find_offset("t", 0, -1);  // Its answer comes behind the refusal.
  CHECK(code_of([&] { consumer.next(0ms); }) == "delivery.not_current");
  CHECK(consumer.next(0ms)->offset() == 1);
}

void a_damaged_batch_costs_itself_alone() {
  ScriptedBroker broker([](Peer& peer) {
    subscribe(peer, wire::SubscriptionKind::READER, 0);
    std::string damaged = batch_of(0, 3);
    damaged.back() ^= 1;
    deliver(peer, {damaged});
    deliver(peer, {batch_of(3, 2), batch_of(4, 1)});
    deliver(peer, {batch_of(6, 1)});
  });
  const Client client = Client::connect(broker.url(), {.retries_max = 0, .log = [](const std::string&) {}});
  Consumer consumer = client.consumer({.topic = "t", .prefetch = 10});
  CHECK(code_of([&] { consumer.next(10s); }) == "batch.corrupt");
  CHECK(code_of([&] { consumer.next(10s); }) == "batch.malformed");
  CHECK(consumer.next(10s)->offset() == 6);  // Though the broker is gone by now.
  CHECK(code_of([&] { consumer.next(10s); }) == "connection.lost");
}

void a_nack_of_a_member_takes_back_what_was_not_handed_out() {
  ScriptedBroker broker([](Peer& peer) {
    subscribe(peer, wire::SubscriptionKind::GROUP, 0);
    peer.send(0, [](wire::Frame::Builder root) {
      auto said = root.initAssigned();
      said.setSubscription(5);
      said.initPartitions(1).set(0, 0);
    });
    deliver(peer, {batch_of(0, 4)});
    const auto nack = peer.read().correlation;
    deliver(peer, {batch_of(4, 2)});
    deliver(peer, {batch_of(1, 3)});
    settled(peer, nack);
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url());
  Consumer consumer = client.consumer({.topic = "t", .group = "g"});
  CHECK(consumer.next(10s)->offset() == 0);
  const auto second = consumer.next(10s);
  consumer.nack(*second);
  for (const std::int64_t offset : {1, 2, 3}) CHECK(consumer.next(10s)->offset() == offset);
}

void time_passes_and_ends_are_told_each_time() {
  ScriptedBroker broker([](Peer& peer) {
    subscribe(peer, wire::SubscriptionKind::READER, 0);
    peer.found(peer.read().correlation, 1);
    peer.send(0, [](wire::Frame::Builder root) {
      auto said = root.initEnded();
      said.setSubscription(5);
      said.setCode("topic.unknown");
    });
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url());
  Consumer consumer = client.consumer({.topic = "t", .prefetch = 10});
  CHECK(!consumer.next(20ms) && !consumer.next_delivery(0ms));
  client.find_offset("t", 0, -1);
  for (int turn = 0; turn < 2; ++turn) CHECK(code_of([&] { consumer.next(10s); }) == "topic.unknown");
}

}  // namespace

int main() {
  return run(
      {{"records come in order, and the broker counts what is held",
        records_come_in_order_and_the_broker_counts_what_is_held},
       {"what waits of a lease that is over is not handed out", what_waits_of_a_lease_that_is_over_is_not_handed_out},
       {"a refusal that nobody waited for is told once", a_refusal_that_nobody_waited_for_is_told_once},
       {"next tells a refusal, too", next_tells_a_refusal_too},
       {"a damaged batch costs itself alone", a_damaged_batch_costs_itself_alone},
       {"a nack of a member takes back what was not handed out", a_nack_of_a_member_takes_back_what_was_not_handed_out},
       {"time passes, and ends are told each time", time_passes_and_ends_are_told_each_time}});
}
