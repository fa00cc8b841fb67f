// A client that loses its broker: it comes back for as long as it is open.
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include <linn/linn.h>

#include "bytes.h"
#include "check.h"
#include "crc32c.h"
#include "scripted_broker.h"

using namespace std::chrono_literals;
using linn::Client;
using linn::ClientOptions;
using linn::Consumer;

namespace {

ClientOptions options() {
  ClientOptions chosen;
  chosen.backoff = 1ms;
  chosen.backoff_max = 10ms;
  chosen.log = [](const std::string&) {};
  return chosen;
}

void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

/// A stored batch of so many records.
std::string batch_of(std::int64_t first, std::size_t records) {
  linn::BatchBuilder builder;
  for (std::size_t index = 0; index < records; ++index) builder.add("x");
  std::string batch = builder.seal();
  linn::detail::store(batch.data() + 16, first);
  linn::detail::store(batch.data() + 44, linn::detail::crc32c(std::string_view(batch).substr(16, 28)));
  return batch;
}

void subscribe(Peer& peer, wire::SubscriptionKind kind, std::uint32_t lease_ms) {
  const linn::FrameContent content = peer.read();
  expect(content.member == "subscribe", "it is no subscribe");
  peer.send(content.correlation, [&](wire::Frame::Builder root) {
    auto said = root.initSubscribed();
    said.setSubscription(5);
    said.setKind(kind);
    said.setLeaseMs(lease_ms);
  });
}

void deliver(Peer& peer, const std::string& batch, std::uint64_t delivery_id, std::uint16_t attempt) {
  peer.send(0, [&](wire::Frame::Builder root) {
    root.setBatches(1);
    auto said = root.initDeliver();
    said.setSubscription(5);
    said.setDeliveryId(delivery_id);
    said.setAttempt(attempt);
  });
  peer.send_bytes(batch);
}

void batches_that_were_not_confirmed_are_sent_again_in_order() {
  ScriptedBroker broker({[](Peer& peer) {
                           peer.welcome();
                           for (const char* value : {"a", "b", "c"})
                             expect(peer.hear_publish().value == value, "order");
                         },
                         [](Peer& peer) {
                           peer.welcome();
                           std::int64_t offset = 0;
                           for (const char* value : {"a", "b", "c", "d"}) {
                             const HeardPublish heard = peer.hear_publish();
                             expect(heard.value == value, "order after the outage");
                             peer.confirm(heard.correlation, offset++);
                           }
                           peer.until_closed();
                         }});
  const Client client = Client::connect(broker.url(), options());
  linn::Producer producer = client.producer({.topic = "t"});
  std::vector<linn::Confirmation> confirmations;
  for (const char* value : {"a", "b", "c"}) {
    producer.add(value);
    confirmations.push_back(*producer.send());
  }
  CHECK(confirmations.back().wait().base_offset == 2);
  CHECK(producer.publish({.value = "d"}).base_offset == 3);
  for (std::size_t index = 0; index < confirmations.size(); ++index)
    CHECK(confirmations[index].wait().base_offset == static_cast<std::int64_t>(index));
  client.close();
  broker.finish();
}

void batches_that_a_stopping_broker_refuses_go_to_the_next_one() {
  ScriptedBroker broker({[](Peer& peer) {
                           peer.welcome();
                           peer.fail(peer.hear_publish().correlation, "broker.stopping", true);
                         },
                         [](Peer& peer) {
                           peer.welcome();
                           peer.confirm(peer.hear_publish().correlation, 5);
                           peer.until_closed();
                         }});
  const Client client = Client::connect(broker.url(), options());
  CHECK(client.producer({.topic = "t"}).publish({.value = "a"}).base_offset == 5);
}

std::string text_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const linn::Error& error) {
    return error.what();
  }
  return "";
}

void without_a_broker_what_is_asked_for_fails_when_its_own_time_is_over() {
  std::promise<void> lost;
  ClientOptions chosen = options();
  chosen.request_timeout = 100ms;
  chosen.log = [&](const std::string&) { lost.set_value(); };
  ScriptedBroker broker([](Peer& peer) { peer.welcome(); });
  const Client client = Client::connect(broker.url(), chosen);
  lost.get_future().wait();
  const std::string publish = text_of([&] { client.producer({.topic = "t"}).publish({.value = "a"}); });
  CHECK(publish.find("was not sent in time") != std::string::npos &&
        publish.find("[request.timeout]") != std::string::npos);
  const std::string request = text_of([&] { client.describe(); });
  CHECK(request.find("no connection to " + broker.url() + " in time") != std::string::npos);
  CHECK(request.find("[request.timeout]") != std::string::npos);
}

void a_publish_that_was_sent_when_the_broker_went_may_be_stored() {
  ClientOptions chosen = options();
  chosen.request_timeout = 500ms;
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    peer.hear_publish();
  });
  const Client client = Client::connect(broker.url(), chosen);
  const std::string text = text_of([&] { client.producer({.topic = "t"}).publish({.value = "a"}); });
  CHECK(text.find("may or may not be stored") != std::string::npos);
}

void a_consumer_waits_through_an_outage_and_what_it_held_comes_again() {
  std::promise<void> acked;
  ScriptedBroker broker({[](Peer& peer) {
                           peer.welcome();
                           subscribe(peer, wire::SubscriptionKind::SHARED, 30'000);
                           deliver(peer, batch_of(0, 3), 9, 1);
                           expect(peer.read().member == "administer", "the application has its record");
                         },
                         [](Peer& peer) {  // One that goes before it has said anything.
                           peer.welcome();
                         },
                         [&](Peer& peer) {
                           peer.welcome();
                           subscribe(peer, wire::SubscriptionKind::SHARED, 30'000);
                           deliver(peer, batch_of(0, 3), 9, 2);
                           const linn::FrameContent settle = peer.read();
                           expect(settle.member == "settle", "the ack");
                           peer.send(settle.correlation, [](wire::Frame::Builder root) { root.initSettled(); });
                           acked.set_value();
                           peer.until_closed();
                         }});
  const Client client = Client::connect(broker.url(), options());
  Consumer consumer = client.consumer({.topic = "t", .prefetch = 4});
  const auto before = consumer.next(10s);
  CHECK(before && before->attempt == 1);
  CHECK(code_of([&] { client.administer("x"); }) == "connection.lost");
  const auto after = consumer.next(10s);
  CHECK(after && after->offset() == 0 && after->attempt == 2);
  consumer.ack(*before);
  CHECK(consumer.next(10s)->offset() == 1);  // Nothing stops who takes records.
  CHECK(code_of([&] { consumer.flush(); }) == "delivery.not_current");
  consumer.ack(*after);
  acked.get_future().wait();
  consumer.flush();
}

void a_reader_goes_on_behind_what_it_has_read() {
  const auto describe = [](Peer& peer) {
    const linn::FrameContent content = peer.read();
    expect(content.member == "describe", "it asks for the partitions");
    peer.send(content.correlation, [](wire::Frame::Builder root) {
      auto topic = root.initDescription().initTopics(1)[0];
      topic.setKind("stream");
      auto partitions = topic.initPartitions(2);
      partitions[0].setHighWatermark(9);
      partitions[1].setHighWatermark(7);
    });
  };
  const auto subscribed_at = [](Peer& peer, std::int64_t first) {
    const linn::FrameContent content = peer.read();
    expect(content.member == "subscribe", "it subscribes");
    for (const auto& [name, field] : content.fields) {
      if (name != "starts") continue;
      const auto& starts = std::get<linn::FieldValue::List>(field.value);
      expect(starts.size() == 2 && std::get<std::int64_t>(starts[0].value) == first, "its place is kept");
      expect(std::get<std::int64_t>(starts[1].value) == 7, "of each partition");
    }
    peer.send(content.correlation, [&](wire::Frame::Builder root) {
      auto said = root.initSubscribed();
      said.setSubscription(5);
      said.setKind(wire::SubscriptionKind::READER);
    });
  };
  ScriptedBroker broker({[&](Peer& peer) {
                           peer.welcome();
                           describe(peer);
                           subscribed_at(peer, 9);
                           deliver(peer, batch_of(9, 2), 0, 0);
                         },
                         [&](Peer& peer) {
                           peer.welcome();
                           describe(peer);
                           subscribed_at(peer, 11);
                           deliver(peer, batch_of(11, 1), 0, 0);
                           peer.until_closed();
                         }});
  const Client client = Client::connect(broker.url(), options());
  Consumer consumer = client.consumer({.topic = "s", .start = linn::from_end});
  for (const std::int64_t offset : {9, 10, 11}) CHECK(consumer.next(10s)->offset() == offset);
  client.close();
  broker.finish();
}

void an_outage_is_told_when_it_begins_and_when_it_is_over() {
  std::promise<std::string> lost, back;
  ClientOptions chosen = options();
  chosen.log = [&](const std::string& line) { (line.starts_with("connected") ? back : lost).set_value(line); };
  ScriptedBroker broker({[](Peer& peer) { peer.welcome(); },
                         [](Peer& peer) {
                           peer.welcome();
                           peer.until_closed();
                         }});
  const Client client = Client::connect(broker.url(), chosen);
  CHECK(lost.get_future().get() ==
        "connection to " + broker.url() + " lost, connecting again: the broker closed the connection");
  CHECK(back.get_future().get().starts_with("connected to " + broker.url() + " again after 0."));
}

void with_a_number_of_retries_what_waits_fails_after_so_many() {
  ClientOptions chosen = options();
  chosen.retries_max = 2;
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    subscribe(peer, wire::SubscriptionKind::SHARED, 30'000);
    peer.hear_publish();
  });
  const Client client = Client::connect(broker.url(), chosen);
  Consumer consumer = client.consumer({.topic = "t"});
  const std::string text = text_of([&] { client.producer({.topic = "t"}).publish({.value = "a"}); });
  CHECK(text.find("may or may not be stored [connection.lost]") != std::string::npos);
  for (int turn = 0; turn < 2; ++turn) CHECK(code_of([&] { consumer.next(); }) == "connection.failed");
  CHECK(code_of([&] { client.describe(); }) == "connection.failed");
}

void a_batch_is_sent_again_no_more_often_than_there_are_retries() {
  ClientOptions chosen = options();
  chosen.retries_max = 1;
  const auto hang_up = [](Peer& peer) {
    peer.welcome();
    peer.hear_publish();
  };
  ScriptedBroker broker({hang_up, hang_up, [](Peer& peer) {
                           peer.welcome();
                           const linn::FrameContent content = peer.read();
                           expect(content.member == "findOffset", "it is sent no more");
                           peer.found(content.correlation, 1);
                         }});
  const Client client = Client::connect(broker.url(), chosen);
  CHECK(code_of([&] { client.producer({.topic = "t"}).publish({.value = "a"}); }) == "connection.lost");
  CHECK(client.find_offset("t", 0, -1) == 1);
}

void a_broker_of_another_version_is_not_waited_for() {
  const auto refuse = [](Peer& peer) { peer.fail(peer.read().correlation, "protocol.version_unsupported"); };
  ScriptedBroker broker({[](Peer& peer) {
                           peer.welcome();
                           subscribe(peer, wire::SubscriptionKind::SHARED, 30'000);
                         },
                         refuse, refuse});  // Twice: the client may have given up before it is asked for a record.
  const Client client = Client::connect(broker.url(), options());
  Consumer consumer = client.consumer({.topic = "t"});
  CHECK(code_of([&] { consumer.next(); }) == "protocol.version_unsupported");
}

void a_client_that_is_closed_without_a_broker_ends_what_waits() {
  ClientOptions chosen = options();
  chosen.backoff = chosen.backoff_max = 1h;
  std::promise<void> lost;
  chosen.log = [&](const std::string&) { lost.set_value(); };
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    subscribe(peer, wire::SubscriptionKind::SHARED, 30'000);
  });
  const Client client = Client::connect(broker.url(), chosen);
  Consumer consumer = client.consumer({.topic = "t"});
  lost.get_future().wait();
  auto next = std::async(std::launch::async, [&] { return code_of([&] { consumer.next(); }); });
  auto publish = std::async(std::launch::async,
                            [&] { return code_of([&] { client.producer({.topic = "t"}).publish({.value = "a"}); }); });
  client.close();
  CHECK(next.get() == "client.closed");
  CHECK(publish.get() == "client.closed");
}

void a_client_may_go_while_its_broker_does() {
  for (int turn = 0; turn < 30; ++turn) {
    ScriptedBroker broker({[](Peer& peer) {
                             peer.welcome();
                             subscribe(peer, wire::SubscriptionKind::SHARED, 30'000);
                             peer.hear_publish();
                           },
                           [](Peer& peer) { peer.welcome(); }, [](Peer& peer) { peer.welcome(); }});
    std::optional<linn::Confirmation> confirmation;
    {
      const Client client = Client::connect(broker.url(), options());
      Consumer consumer = client.consumer({.topic = "t"});
      linn::Producer producer = client.producer({.topic = "t"});
      producer.add("a");
      confirmation = producer.send();
      if (turn % 2 == 0) consumer.next(std::chrono::milliseconds(turn / 2));
    }
    CHECK(code_of([&] { confirmation->wait(); }) == "client.closed");
  }
}

void a_consumer_that_is_gone_leaves_no_subscription_behind() {
  ScriptedBroker broker({[](Peer& peer) {
                           peer.welcome();
                           subscribe(peer, wire::SubscriptionKind::SHARED, 30'000);
                         },
                         [](Peer& peer) {
                           peer.welcome();
                           const std::uint64_t correlation = peer.read().correlation;
                           const linn::FrameContent next = peer.read();
                           expect(next.member == "findOffset", "the consumer is gone");
                           peer.send(correlation, [](wire::Frame::Builder root) { root.initSubscribed(); });
                           expect(peer.read().member == "unsubscribe", "so is its subscription");
                           peer.found(next.correlation, 1);
                         }});
  const Client client = Client::connect(broker.url(), options());
  // Time enough to ask for the subscription again, which is not answered.
  CHECK(!client.consumer({.topic = "t"}).next(500ms));
  CHECK(client.find_offset("t", 0, -1) == 1);
}

}  // namespace

int main() {
  return run(
      {{"batches that were not confirmed are sent again in order",
        batches_that_were_not_confirmed_are_sent_again_in_order},
       {"batches that a stopping broker refuses go to the next one",
        batches_that_a_stopping_broker_refuses_go_to_the_next_one},
       {"without a broker what is asked for fails when its own time is over",
        without_a_broker_what_is_asked_for_fails_when_its_own_time_is_over},
       {"a publish that was sent when the broker went may be stored",
        a_publish_that_was_sent_when_the_broker_went_may_be_stored},
       {"a consumer waits through an outage, and what it held comes again",
        a_consumer_waits_through_an_outage_and_what_it_held_comes_again},
       {"a reader goes on behind what it has read", a_reader_goes_on_behind_what_it_has_read},
       {"an outage is told when it begins and when it is over", an_outage_is_told_when_it_begins_and_when_it_is_over},
       {"with a number of retries what waits fails after so many",
        with_a_number_of_retries_what_waits_fails_after_so_many},
       {"a batch is sent again no more often than there are retries",
        a_batch_is_sent_again_no_more_often_than_there_are_retries},
       {"a broker of another version is not waited for", a_broker_of_another_version_is_not_waited_for},
       {"a client may go while its broker does", a_client_may_go_while_its_broker_does},
       {"a consumer that is gone leaves no subscription behind", a_consumer_that_is_gone_leaves_no_subscription_behind},
       {"a client that is closed without a broker ends what waits",
        a_client_that_is_closed_without_a_broker_ends_what_waits}});
}
