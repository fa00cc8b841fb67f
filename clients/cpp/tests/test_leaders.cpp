// Producers go to the broker that leads their topic, as descriptions say, and to the broker at hand otherwise.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <linn/linn.h>

#include "check.h"
#include "leaders.h"
#include "scripted_broker.h"

using namespace std::chrono_literals;
using linn::Client;
using linn::ClientOptions;
using linn::Confirmation;
using linn::Uuid;
using linn::detail::Description;
using linn::detail::Leaders;

namespace {

// --- what is known, and what follows from it ---

constexpr Uuid topic_id{1, 2};
const Clock::time_point start{};

/// A description of the topic "t" by a cluster whose nodes 1 to 3 can be reached.
Description description(std::uint32_t leader, std::int32_t epoch, Uuid id = topic_id) {
  linn::TopicInfo topic;
  topic.name = "t";
  topic.partitions = {{leader, 0, 0, epoch}};
  topic.id = id;
  return {{{1, "a"}, {2, "b"}, {3, "c"}}, {std::move(topic)}};
}

/// What a client knows whose broker at hand is node 1, when it was told of a leader.
std::unique_ptr<Leaders> told(std::uint32_t leader, std::int32_t epoch) {
  auto leaders = std::make_unique<Leaders>();
  leaders->at_hand(1, start);
  leaders->watch("t", start);
  leaders->to_describe(start);
  leaders->told(description(leader, epoch), start);
  return leaders;
}

bool asks(Leaders& leaders, Clock::time_point now) { return leaders.to_describe(now) == std::vector<std::string>{"t"}; }

std::uint32_t reaches(Leaders& leaders, Clock::time_point now) {
  const auto target = leaders.to_reach(now);
  return target ? target->node : 0;
}

void topics_of_producers_are_described_at_once_and_each_minute() {
  Leaders leaders;
  leaders.at_hand(1, start);
  CHECK(leaders.next_time() == Clock::time_point::max());
  leaders.watch("t", start);
  leaders.watch("t", start);
  CHECK(leaders.next_time() == start && asks(leaders, start) && !asks(leaders, start + 59s));
  leaders.told(description(2, 5), start);
  CHECK(!asks(leaders, start + 59s) && asks(leaders, start + 60s));
  leaders.unwatch("t");
  CHECK(leaders.leader_of("t") == 2 && asks(leaders, start + 120s));
  leaders.unwatch("t");
  CHECK(leaders.leader_of("t") == 0 && leaders.to_describe(start + 999s).empty());
}

void a_broker_without_a_cluster_is_asked_nothing() {
  Leaders leaders;
  leaders.at_hand(0, start);
  leaders.watch("t", start);
  CHECK(leaders.to_describe(start).empty() && leaders.next_time() == Clock::time_point::max());
  CHECK(!leaders.confirmed("t", topic_id, 9, start) && leaders.is_settled("t", start));
}

void of_two_descriptions_the_one_with_the_later_epoch_counts() {
  const auto leaders = told(2, 5);
  leaders->told(description(3, 4), start);
  CHECK(leaders->leader_of("t") == 2);
  leaders->told(description(3, 6), start);
  CHECK(leaders->leader_of("t") == 3);
  leaders->told(description(2, 1, {7, 7}), start);  // Another topic of that name.
  CHECK(leaders->leader_of("t") == 2);
}

void a_later_epoch_is_asked_for_until_it_is_told() {
  const auto leaders = told(2, 5);
  CHECK(!leaders->confirmed("t", topic_id, 5, start) && !asks(*leaders, start + 1s));
  CHECK(leaders->confirmed("t", topic_id, 6, start + 1s) && asks(*leaders, start + 1s));
  CHECK(!leaders->confirmed("t", topic_id, 6, start + 1s) && !asks(*leaders, start + 1s));
  leaders->told(description(2, 5), start + 1s);
  CHECK(!asks(*leaders, start + 1s) && asks(*leaders, start + 1500ms));
  leaders->told(description(3, 6), start + 2s);
  CHECK(!asks(*leaders, start + 3s));
  CHECK(leaders->confirmed("t", {7, 7}, 1, start + 3s) && asks(*leaders, start + 3s));  // Another topic of that name.
  CHECK(!leaders->confirmed("t", topic_id, 0, start + 3s) && !leaders->confirmed("u", topic_id, 9, start + 3s));
}

void it_is_asked_again_when_something_has_changed() {
  const auto leaders = told(2, 5);
  CHECK(leaders->not_led("t", start + 1s) && asks(*leaders, start + 1s));
  leaders->at_hand(3, start + 2s);
  CHECK(asks(*leaders, start + 2s));
  leaders->lost(3, start + 3s);
  CHECK(!asks(*leaders, start + 3s));
  leaders->lost(2, start + 3s);
  CHECK(asks(*leaders, start + 3s));
}

void leaders_are_connected_to_once() {
  const auto leaders = told(2, 5);
  CHECK(!leaders->is_settled("t", start));
  const auto target = leaders->to_reach(start);
  CHECK(target && target->node == 2 && target->address == "b");
  CHECK(!leaders->to_reach(start) && !leaders->is_settled("t", start));
  leaders->reached(2);
  CHECK(!leaders->to_reach(start) && leaders->is_settled("t", start));
  leaders->lost(2, start);
  CHECK(reaches(*leaders, start + 499ms) == 0 && reaches(*leaders, start + 500ms) == 2);
}

void nobody_connects_to_who_is_at_hand_unknown_or_not_told() {
  for (const std::uint32_t leader : {0u, 1u, 4u}) {
    const auto leaders = told(leader, 5);
    CHECK(reaches(*leaders, start) == 0 && leaders->is_settled("t", start));
  }
  const auto leaders = told(2, 5);
  leaders->told({{{1, "a"}}, {}}, start);
  CHECK(reaches(*leaders, start) == 0);
}

void who_cant_be_reached_rests_ever_longer() {
  const auto leaders = told(2, 5);
  Clock::time_point now = start;
  bool is_first = true;
  for (const auto rest : {5s, 10s, 20s, 40s, 60s, 60s}) {
    CHECK(reaches(*leaders, now) == 2);
    CHECK(leaders->failed(2, now) == is_first && leaders->is_settled("t", now));
    CHECK(reaches(*leaders, now + rest - 1ms) == 0);
    now += rest;
    CHECK(leaders->next_time() <= now);
    is_first = false;
  }
  CHECK(reaches(*leaders, now) == 2);
  leaders->reached(2);
  leaders->lost(2, now);
  CHECK(reaches(*leaders, now + 1s) == 2 && leaders->failed(2, now) && reaches(*leaders, now + 5s) == 2);
}

// --- clients and brokers ---

ClientOptions options(std::function<void(const std::string&)> log = [](const std::string&) {}) {
  ClientOptions chosen;
  chosen.backoff = 1ms;
  chosen.backoff_max = 10ms;
  chosen.log = std::move(log);
  return chosen;
}

struct Leader {
  std::uint32_t node = 0;
  std::int32_t epoch = 0;
};

/// Say who leads the topic that is asked for, and that node 2 is at a path.
void describe(Peer& peer, std::uint64_t correlation, Leader leader, const std::string& path) {
  peer.send(correlation, [&](wire::Frame::Builder root) {
    auto said = root.initDescription();
    auto node = said.initNodes(1)[0];
    node.setId(2);
    node.setAddress("unix:" + path);
    auto topic = said.initTopics(1)[0];
    topic.setName("t");
    auto partition = topic.initPartitions(1)[0];
    partition.setLeader(leader.node);
    partition.setLeaderEpoch(leader.epoch);
  });
}

/// The next publish, with its batch; until it, descriptions are answered.
HeardPublish hear_publish(Peer& peer, const std::function<Leader()>& leader, const std::string& path) {
  for (;;) {
    const linn::FrameContent content = peer.read();
    if (content.member == "publish") {
      const linn::Batch batch = linn::Batch::decode(peer.read_bytes().value());
      return {content.correlation, std::string(batch[0].value().value()), batch.header()};
    }
    if (content.member != "describe") throw std::runtime_error("the client sent " + content.member);
    describe(peer, content.correlation, leader(), path);
  }
}

/// Answer descriptions until the client closes the connection or sends anything else, which is an error.
void describe_until_closed(Peer& peer, const std::function<Leader()>& leader, const std::string& path) {
  while (const auto bytes = peer.read_bytes()) {
    const linn::FrameContent content = linn::read_frame(*bytes);
    if (content.member == "ping") continue;
    if (content.member != "describe") throw std::runtime_error("the broker at hand was sent " + content.member);
    describe(peer, content.correlation, leader(), path);
  }
}

linn::FrameContent welcome(Peer& peer, std::uint32_t node, const char* cluster = "c") {
  return peer.welcome(20'000, 1, 256, node, cluster);
}

Leader node_2() { return {2, 5}; }
Leader nobody() { return {}; }

Confirmation send(linn::Producer& producer, const char* value) {
  producer.add(value);
  return *producer.send();
}

void expect(const HeardPublish& heard, const std::string& value, std::uint32_t sequence) {
  if (heard.value != value || heard.numbers.first_sequence != sequence || heard.numbers.producer_id != 256)
    throw std::runtime_error("expected " + value + ", but got " + heard.value + " at sequence " +
                             std::to_string(heard.numbers.first_sequence));
}

void publishes_go_to_the_leader_with_the_ids_of_the_client() {
  ScriptedBroker leader([](Peer& peer) {
    const linn::FrameContent hello = welcome(peer, 2);
    std::int64_t id = 0;
    std::uint64_t key = 0;
    for (const auto& [name, field] : hello.fields) {
      if (name == "producerId") id = std::get<std::int64_t>(field.value);
      if (name == "producerKey") key = std::get<std::uint64_t>(field.value);
    }
    if (id != 256 || key != 7) throw std::runtime_error("it does not show its producer ids");
    const HeardPublish a = peer.hear_publish(), b = peer.hear_publish();
    expect(a, "a", 0);
    expect(b, "b", 1);
    peer.confirm(a.correlation);
    peer.confirm(b.correlation, 1);
    peer.until_closed();
  });
  ScriptedBroker at_hand([&](Peer& peer) {
    welcome(peer, 1);
    describe_until_closed(peer, node_2, leader.path());
  });
  const Client client = Client::connect(at_hand.url(), options());
  CHECK(client.broker().node == 1 && client.broker().cluster == "c");
  linn::Producer producer = client.producer({.topic = "t"});
  send(producer, "a");
  CHECK(send(producer, "b").wait().base_offset == 1);
  client.close();
  leader.finish();
  at_hand.finish();
}

void a_producer_for_an_exchange_stays_with_the_broker_at_hand() {
  ScriptedBroker at_hand([&](Peer& peer) {
    welcome(peer, 1);
    peer.confirm(peer.hear_publish().correlation, 0, 9);
    peer.confirm(peer.hear_publish().correlation, 0, 9);
    peer.until_closed();
  });
  const Client client = Client::connect(at_hand.url(), options());
  linn::Producer producer = client.producer({.exchange = "t"});
  producer.publish({.value = "a"});
  producer.publish({.value = "b"});
  client.close();
  at_hand.finish();
}

void a_connection_counts_only_if_the_broker_that_was_named_answers() {
  const std::vector<std::pair<std::uint32_t, const char*>> others{{3, "c"}, {2, "d"}, {0, ""}};
  for (const auto& [node, cluster] : others) {
    ScriptedBroker other([&](Peer& peer) {
      welcome(peer, node, cluster);
      peer.until_closed();
    });
    ScriptedBroker at_hand([&](Peer& peer) {
      welcome(peer, 1);
      peer.confirm(hear_publish(peer, node_2, other.path()).correlation);
      peer.until_closed();
    });
    std::promise<std::string> line;
    const Client client = Client::connect(at_hand.url(), options([&](const std::string& said) { line.set_value(said); }));
    client.producer({.topic = "t"}).publish({.value = "a"});
    const std::string said = line.get_future().get();
    CHECK(said.starts_with("broker 2 can't be reached, its topics are published to through scripted: "));
    CHECK(said.ends_with("another broker answers at unix:" + other.path()));
    client.close();
    other.finish();
    at_hand.finish();
  }
}

void change_connection(linn::Acks acks) {
  std::atomic<bool> is_b_answered = false;
  std::promise<void> is_reached;
  ScriptedBroker leader([&](Peer& peer) {
    welcome(peer, 2);
    is_reached.set_value();
    const HeardPublish c = peer.hear_publish();
    if (c.value != "c") throw std::runtime_error("the leader got " + c.value);
    if (!is_b_answered) throw std::runtime_error("c overtook b");
    peer.confirm(c.correlation, 2, 6);
    peer.until_closed();
  });
  ScriptedBroker at_hand([&](Peer& peer) {
    welcome(peer, 1);
    const HeardPublish a = hear_publish(peer, nobody, leader.path()), b = peer.hear_publish();
    peer.confirm(a.correlation, 0, 6);  // In an epoch that the client does not know: it asks who leads.
    describe(peer, peer.read().correlation, {2, 6}, leader.path());
    const linn::FrameContent find = peer.read();
    if (find.member != "findOffset") throw std::runtime_error("the broker at hand was sent " + find.member);
    is_b_answered = true;
    peer.confirm(b.correlation, 1, 6);
    peer.found(find.correlation, 1);
    peer.until_closed();
  });
  const Client client = Client::connect(at_hand.url(), options());
  linn::Producer producer = client.producer({.topic = "t", .acks = acks});
  const Confirmation a = send(producer, "a"), b = send(producer, "b");
  a.wait();
  is_reached.get_future().wait();
  client.producer({.topic = "t"});  // Waits for the attempt to connect.
  const Confirmation c = send(producer, "c");
  CHECK(!b.ready() && client.find_offset("t", 0, -1) == 1);
  c.wait();
  client.close();
  leader.finish();
  at_hand.finish();
}

void batches_wait_for_those_in_flight_on_another_connection() {
  for (const linn::Acks acks : {linn::Acks::all, linn::Acks::none}) change_connection(acks);
}

void batches_of_a_lost_connection_go_to_the_broker_at_hand_first_and_with_their_numbers() {
  ScriptedBroker leader([&](Peer& peer) {
    welcome(peer, 2);
    expect(peer.hear_publish(), "a", 0);
    expect(peer.hear_publish(), "b", 1);
  });
  ScriptedBroker at_hand([&](Peer& peer) {
    welcome(peer, 1);
    std::uint32_t sequence = 0;
    for (const char* value : {"a", "b", "c"}) {
      const HeardPublish heard = hear_publish(peer, node_2, leader.path());
      expect(heard, value, sequence);
      peer.confirm(heard.correlation, sequence++);
    }
    describe_until_closed(peer, node_2, leader.path());
  });
  const Client client = Client::connect(at_hand.url(), options());
  linn::Producer producer = client.producer({.topic = "t"});
  const Confirmation a = send(producer, "a"), b = send(producer, "b");
  CHECK(b.wait().base_offset == 1 && a.wait().base_offset == 0);
  CHECK(send(producer, "c").wait().base_offset == 2);
  client.close();
  at_hand.finish();
}

void a_broker_that_does_not_lead_any_more_is_left() {
  ScriptedBroker leader([&](Peer& peer) {
    welcome(peer, 2);
    try {
      for (;;) {
        const HeardPublish heard = peer.hear_publish();
        expect(heard, "a", 0);
        peer.fail(heard.correlation, "partition.not_leader", true);
      }
    } catch (const std::runtime_error&) {
      // The client has gone.
    }
  });
  ScriptedBroker at_hand([&](Peer& peer) {
    welcome(peer, 1);
    describe(peer, peer.read().correlation, node_2(), leader.path());
    const HeardPublish heard = hear_publish(peer, [] { return Leader{1, 6}; }, leader.path());
    expect(heard, "a", 0);
    peer.confirm(heard.correlation, 7, 6);
    peer.until_closed();
  });
  const Client client = Client::connect(at_hand.url(), options());
  CHECK(client.producer({.topic = "t"}).publish({.value = "a"}).base_offset == 7);
  client.close();
  at_hand.finish();
}

void a_leader_that_is_silent_for_three_seconds_is_left() {
  ScriptedBroker leader([&](Peer& peer) {
    welcome(peer, 2);
    peer.until_closed();  // It answers nothing, not even signs of life.
  });
  ScriptedBroker at_hand([&](Peer& peer) {
    welcome(peer, 1);
    peer.confirm(hear_publish(peer, node_2, leader.path()).correlation, 7);
    describe_until_closed(peer, node_2, leader.path());
  });
  const Client client = Client::connect(at_hand.url(), options());
  const Clock::time_point began = Clock::now();
  CHECK(client.producer({.topic = "t"}).publish({.value = "a"}).base_offset == 7);
  CHECK(Clock::now() - began < 20s);  // The interval that the broker asks for.
  client.close();
  at_hand.finish();
}

void a_stopping_leader_is_left_for_the_broker_at_hand() {
  ScriptedBroker leader([&](Peer& peer) {
    welcome(peer, 2);
    peer.fail(peer.hear_publish().correlation, "broker.stopping", true);
    while (const auto bytes = peer.read_bytes()) {  // It stays alive.
      const linn::FrameContent content = linn::read_frame(*bytes);
      if (content.member != "ping") throw std::runtime_error("the stopping leader was sent " + content.member);
      peer.send(content.correlation, [](wire::Frame::Builder root) { root.setPong(); });
    }
  });
  ScriptedBroker at_hand([&](Peer& peer) {
    welcome(peer, 1);
    peer.confirm(hear_publish(peer, node_2, leader.path()).correlation, 7);
    describe_until_closed(peer, node_2, leader.path());
  });
  const Client client = Client::connect(at_hand.url(), options());
  CHECK(client.producer({.topic = "t"}).publish({.value = "a"}).base_offset == 7);
  client.close();
  at_hand.finish();
}

void a_leader_is_published_to_while_there_is_no_broker_at_hand() {
  std::promise<void> is_away;
  ScriptedBroker leader([&](Peer& peer) {
    welcome(peer, 2);
    peer.confirm(peer.hear_publish().correlation, 0);
    const HeardPublish b = peer.hear_publish();
    peer.fail(b.correlation, "topic.full", true);  // Sent again by a thread of the client's own.
    peer.confirm(peer.hear_publish().correlation, 1);
    peer.until_closed();
  });
  ScriptedBroker at_hand([&](Peer& peer) {
    welcome(peer, 1);
    describe(peer, peer.read().correlation, node_2(), leader.path());
    if (peer.read().member != "administer") throw std::runtime_error("the broker at hand was published to");
  });
  const Client client =
      Client::connect(at_hand.url(), options([&](const std::string& line) {
                        if (line.starts_with("connection to")) is_away.set_value();
                      }));
  linn::Producer producer = client.producer({.topic = "t"});
  CHECK(producer.publish({.value = "a"}).base_offset == 0);
  CHECK(code_of([&] { client.administer("x"); }) == "connection.lost");
  is_away.get_future().wait();
  CHECK(producer.publish({.value = "b"}).base_offset == 1);
  client.close();
  leader.finish();
}

}  // namespace

int main() {
  return run(
      {{"topics of producers are described at once and each minute",
        topics_of_producers_are_described_at_once_and_each_minute},
       {"a broker without a cluster is asked nothing", a_broker_without_a_cluster_is_asked_nothing},
       {"of two descriptions the one with the later epoch counts",
        of_two_descriptions_the_one_with_the_later_epoch_counts},
       {"a later epoch is asked for until it is told", a_later_epoch_is_asked_for_until_it_is_told},
       {"it is asked again when something has changed", it_is_asked_again_when_something_has_changed},
       {"leaders are connected to once", leaders_are_connected_to_once},
       {"nobody connects to who is at hand, unknown or not told",
        nobody_connects_to_who_is_at_hand_unknown_or_not_told},
       {"who can't be reached rests ever longer", who_cant_be_reached_rests_ever_longer},
       {"publishes go to the leader, with the ids of the client",
        publishes_go_to_the_leader_with_the_ids_of_the_client},
       {"a producer for an exchange stays with the broker at hand",
        a_producer_for_an_exchange_stays_with_the_broker_at_hand},
       {"a connection counts only if the broker that was named answers",
        a_connection_counts_only_if_the_broker_that_was_named_answers},
       {"batches wait for those in flight on another connection",
        batches_wait_for_those_in_flight_on_another_connection},
       {"batches of a lost connection go to the broker at hand, first and with their numbers",
        batches_of_a_lost_connection_go_to_the_broker_at_hand_first_and_with_their_numbers},
       {"a broker that does not lead any more is left", a_broker_that_does_not_lead_any_more_is_left},
       {"a leader that is silent for three seconds is left", a_leader_that_is_silent_for_three_seconds_is_left},
       {"a stopping leader is left for the broker at hand", a_stopping_leader_is_left_for_the_broker_at_hand},
       {"a leader is published to while there is no broker at hand",
        a_leader_is_published_to_while_there_is_no_broker_at_hand}});
}
