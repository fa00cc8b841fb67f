// A producer's batches: what is sent again, with which numbers, and in which order.
#include <chrono>
#include <future>
#include <string>
#include <utility>

#include <linn/linn.h>

#include "check.h"
#include "scripted_broker.h"
#include "seal.h"

using namespace std::chrono_literals;
using linn::Client;
using linn::ClientOptions;
using linn::Confirmation;

namespace {

constexpr std::int64_t first_id = 256;
constexpr const char* out_of_order = "producer.out_of_order";

ClientOptions options() {
  ClientOptions chosen;
  chosen.backoff = 1ms;
  chosen.backoff_max = 10ms;
  chosen.log = [](const std::string&) {};
  return chosen;
}

ClientOptions hasty() {
  ClientOptions chosen = options();
  chosen.request_timeout = 500ms;
  return chosen;
}

Confirmation send(linn::Producer& producer, const char* value, int records = 1) {
  for (int count = 0; count < records; ++count) producer.add(value);
  return *producer.send();
}

/// The next publish, which must have this value and these numbers.
std::uint64_t expect_publish(Peer& peer, const std::string& value, std::uint16_t epoch, std::uint32_t sequence) {
  const HeardPublish heard = peer.hear_publish();
  const auto& numbers = heard.numbers;
  if (heard.value != value || numbers.producer_id != first_id || numbers.producer_epoch != epoch ||
      numbers.first_sequence != sequence || numbers.attributes != 4)
    throw std::runtime_error("expected " + value + ", epoch " + std::to_string(epoch) + ", sequence " +
                             std::to_string(sequence) + ", but got " + heard.value + ", " +
                             std::to_string(numbers.producer_epoch) + ", " + std::to_string(numbers.first_sequence));
  return heard.correlation;
}

void a_batch_keeps_its_numbers_after_a_lost_connection() {
  ScriptedBroker broker({[](Peer& peer) {
                           peer.welcome();
                           expect_publish(peer, "a", 0, 0);
                           expect_publish(peer, "b", 0, 3);
                         },
                         [](Peer& peer) {
                           peer.welcome(20'000, 1, 9 * first_id);  // Only the ids of the first welcome count.
                           peer.confirm(expect_publish(peer, "a", 0, 0));
                           peer.confirm(expect_publish(peer, "b", 0, 3));
                           peer.confirm(expect_publish(peer, "c", 0, 5));
                           peer.until_closed();
                         }});
  const Client client = Client::connect(broker.url(), options());
  linn::Producer producer = client.producer({.topic = "t"});
  send(producer, "a", 3);
  send(producer, "b", 2).wait();
  send(producer, "c").wait();
  client.close();
  broker.finish();
}

void a_batch_that_is_refused_for_now_is_sent_again_before_those_behind_it() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    const auto a = expect_publish(peer, "a", 0, 0), b = expect_publish(peer, "b", 0, 1);
    peer.fail(a, "topic.full", true);
    peer.found(peer.read().correlation, 1);  // While b is not answered, nothing is sent.
    peer.fail(b, out_of_order, true);
    for (const auto& [value, sequence] : {std::pair{"a", 0u}, {"b", 1u}, {"c", 2u}})
      peer.confirm(expect_publish(peer, value, 0, sequence));
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url(), options());
  linn::Producer producer = client.producer({.topic = "t"});
  send(producer, "a");
  send(producer, "b");
  CHECK(client.find_offset("t", 0, -1) == 1);
  send(producer, "c");
  producer.flush();
  client.close();
  broker.finish();
}

void batches_behind_a_missing_one_get_new_numbers() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    const auto a = expect_publish(peer, "a", 0, 0), b = expect_publish(peer, "b", 0, 1);
    const auto c = expect_publish(peer, "c", 0, 2);
    peer.fail(a, "message.too_large");
    peer.fail(b, out_of_order, true);
    peer.fail(c, out_of_order, true);
    peer.confirm(expect_publish(peer, "b", 1, 0));
    peer.confirm(expect_publish(peer, "c", 1, 1));
    peer.confirm(expect_publish(peer, "d", 1, 2));
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url(), options());
  linn::Producer producer = client.producer({.topic = "t"});
  const Confirmation a = send(producer, "a"), b = send(producer, "b"), c = send(producer, "c");
  CHECK(code_of([&] { a.wait(); }) == "message.too_large");
  b.wait();
  c.wait();
  send(producer, "d").wait();
  client.close();
  broker.finish();
}

void a_producer_that_the_broker_has_forgotten_begins_a_new_epoch() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    peer.confirm(expect_publish(peer, "a", 0, 0));
    peer.fail(expect_publish(peer, "b", 0, 1), out_of_order, true);
    peer.confirm(expect_publish(peer, "b", 1, 0));
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url(), options());
  linn::Producer producer = client.producer({.topic = "t"});
  producer.publish({.value = "a"});
  producer.publish({.value = "b"});
  client.close();
  broker.finish();
}

void a_refusal_as_out_of_order_is_no_attempt() {
  ClientOptions chosen = options();
  chosen.retries_max = 1;
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    const auto a = expect_publish(peer, "a", 0, 0), b = expect_publish(peer, "b", 0, 1);
    peer.fail(a, "topic.full", true);
    peer.fail(b, out_of_order, true);
    const auto again = expect_publish(peer, "a", 0, 0), behind = expect_publish(peer, "b", 0, 1);
    peer.fail(again, "topic.full", true);
    peer.fail(behind, out_of_order, true);
    peer.confirm(expect_publish(peer, "b", 1, 0));
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url(), chosen);
  linn::Producer producer = client.producer({.topic = "t"});
  const Confirmation a = send(producer, "a"), b = send(producer, "b");
  CHECK(code_of([&] { a.wait(); }) == "topic.full");
  b.wait();
  client.close();
  broker.finish();
}

void a_new_epoch_waits_until_nothing_is_in_flight() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    const auto a = expect_publish(peer, "a", 0, 0), b = expect_publish(peer, "b", 0, 1);
    peer.fail(a, "message.too_large");
    peer.found(peer.read().correlation, 1);  // Sent after c was.
    peer.confirm(b);
    peer.confirm(expect_publish(peer, "c", 1, 0));
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url(), options());
  linn::Producer producer = client.producer({.topic = "t"});
  const Confirmation a = send(producer, "a"), b = send(producer, "b");
  CHECK(code_of([&] { a.wait(); }) == "message.too_large");
  const Confirmation c = send(producer, "c");
  CHECK(client.find_offset("t", 0, -1) == 1);
  b.wait();
  c.wait();
  client.close();
  broker.finish();
}

void a_new_epoch_begins_after_a_batch_with_an_unknown_outcome() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    const auto a = expect_publish(peer, "a", 0, 0);
    const auto b = expect_publish(peer, "b", 1, 0);
    peer.confirm(a);
    peer.confirm(b, 5);
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url(), hasty());
  linn::Producer producer = client.producer({.topic = "t"});
  CHECK(code_of([&] { producer.publish({.value = "a"}); }) == "request.timeout");
  CHECK(producer.publish({.value = "b"}).base_offset == 5);
  client.close();
  broker.finish();
}

void a_hold_ends_when_the_time_of_what_is_in_flight_is_over() {
  ClientOptions chosen = options();
  chosen.request_timeout = 1s;
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    const auto a = expect_publish(peer, "a", 0, 0);
    expect_publish(peer, "b", 0, 1);  // Never answered.
    peer.fail(a, "message.too_large");
    peer.confirm(expect_publish(peer, "c", 1, 0));
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url(), chosen);
  linn::Producer producer = client.producer({.topic = "t"});
  const Confirmation a = send(producer, "a"), b = send(producer, "b");
  CHECK(code_of([&] { a.wait(); }) == "message.too_large");
  std::promise<void> never;
  never.get_future().wait_for(500ms);  // So that c has time left when b has none.
  send(producer, "c").wait();
  CHECK(code_of([&] { b.wait(); }) == "request.timeout");
  client.close();
  broker.finish();
}

void a_refusal_for_now_becomes_final_when_the_time_is_over() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    try {
      for (;;) {
        const HeardPublish heard = peer.hear_publish();
        peer.fail(heard.correlation, heard.value == "a" ? "topic.full" : out_of_order, true);
      }
    } catch (const std::runtime_error&) {
      // The client has gone.
    }
  });
  const Client client = Client::connect(broker.url(), hasty());
  linn::Producer producer = client.producer({.topic = "t"});
  const Confirmation a = send(producer, "a"), b = send(producer, "b");
  CHECK(code_of([&] { a.wait(); }) == "topic.full");
  CHECK(code_of([&] { b.wait(); }) == "request.timeout");  // Its own refusal says nothing to the application.
}

void refusals_for_now_are_counted_as_attempts() {
  ClientOptions chosen = options();
  chosen.retries_max = 2;
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    for (int count = 0; count < 3; ++count) peer.fail(expect_publish(peer, "a", 0, 0), "topic.full", true);
    peer.confirm(expect_publish(peer, "b", 1, 0));
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url(), chosen);
  linn::Producer producer = client.producer({.topic = "t"});
  CHECK(code_of([&] { producer.publish({.value = "a"}); }) == "topic.full");
  producer.publish({.value = "b"});
  client.close();
  broker.finish();
}

void records_that_are_refused_fail_and_the_others_are_confirmed() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    peer.refuse_second(expect_publish(peer, "a", 0, 0));
    peer.refuse_second(expect_publish(peer, "b", 0, 3));
    peer.confirm(expect_publish(peer, "c", 0, 6));
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url(), options());
  linn::Producer producer = client.producer({.topic = "t"});
  const Confirmation a = send(producer, "a", 3);
  for (int count = 0; count < 2; ++count) {
    try {
      a.wait();
      CHECK(false);
    } catch (const linn::RecordsRefused& refused) {
      CHECK(refused.code() == "message.too_large");
      CHECK(refused.placement.copies == 2);
      CHECK(refused.placement.refused.at(0).records.at(0).first == 1);
    }
  }
  producer.flush();  // Somebody was told.
  send(producer, "b", 3);
  CHECK(code_of([&] { producer.flush(); }) == "message.too_large");
  send(producer, "c").wait();
  client.close();
  broker.finish();
}

void a_refusal_of_what_may_be_stored_already_says_so() {
  for (const bool of_records : {false, true}) {
    ScriptedBroker broker({[](Peer& peer) {
                             peer.welcome();
                             expect_publish(peer, "a", 0, 0);
                           },
                           [of_records](Peer& peer) {
                             peer.welcome();
                             const auto again = expect_publish(peer, "a", 0, 0);
                             of_records ? peer.refuse_second(again) : peer.fail(again, "message.too_large");
                             peer.until_closed();
                           }});
    const Client client = Client::connect(broker.url(), options());
    linn::Producer producer = client.producer({.topic = "t"});
    CHECK(code_of([&] { send(producer, "a", 3).wait(); }) == "connection.lost");
    client.close();
    broker.finish();
  }
}

void a_batch_that_was_sent_again_without_an_answer_is_not_reported_as_refused() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    peer.fail(expect_publish(peer, "a", 0, 0), "topic.full", true);
    expect_publish(peer, "a", 0, 0);
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url(), hasty());
  linn::Producer producer = client.producer({.topic = "t"});
  CHECK(code_of([&] { producer.publish({.value = "a"}); }) == "request.timeout");
  client.close();
  broker.finish();
}

void only_idempotent_producers_number_their_batches() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    for (int count = 0; count < 3; ++count) {
      const HeardPublish heard = peer.hear_publish();
      const bool numbered = heard.numbers.producer_id != 0 || heard.numbers.attributes != 0;
      if (numbered != (heard.value == "numbered")) throw std::runtime_error("it has the wrong numbers");
      if (numbered && heard.numbers.attributes != 0) throw std::runtime_error("it says that the broker chooses");
      peer.confirm(heard.correlation);
    }
    peer.until_closed();
  });
  const Client client = Client::connect(broker.url(), options());
  client.producer({.topic = "t", .acks = linn::Acks::none}).publish({.value = "not"});
  client.producer({.topic = "t", .in_flight_max = 9, .idempotent = false}).publish({.value = "not"});
  client.producer({.topic = "t", .partition = 2}).publish({.value = "numbered"});
  CHECK(code_of([&] { client.producer({.topic = "t", .in_flight_max = 9}); }) == "message.invalid");
  client.close();
  broker.finish();
}

void a_batch_of_another_producer_gets_new_numbers() {
  linn::BatchBuilder builder;
  builder.add("x");
  const std::string sealed = builder.seal();
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    peer.confirm(expect_publish(peer, "x", 0, 0));
    peer.confirm(expect_publish(peer, "x", 0, 1));
    const HeardPublish heard = peer.hear_publish();
    if (heard.numbers.producer_id != 0) throw std::runtime_error("it has numbers");
    peer.confirm(heard.correlation);
    peer.until_closed();
  });
  std::string numbered = sealed;
  linn::detail::number(numbered, {77, 8, 9, 4});
  const Client client = Client::connect(broker.url(), options());
  linn::Producer producer = client.producer({.topic = "t"});
  producer.send_batch(sealed).wait();
  producer.send_batch(linn::Batch::decode(numbered)).wait();
  client.producer({.topic = "t", .idempotent = false}).send_batch(numbered).wait();
  client.close();
  broker.finish();
}

void bytes_that_are_no_sealed_batch_are_not_sent() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    peer.until_closed();
  });
  linn::BatchBuilder builder;
  builder.add("x");
  std::string damaged = builder.seal();
  damaged.back() ^= 1;
  const Client client = Client::connect(broker.url(), options());
  linn::Producer producer = client.producer({.topic = "t"});
  CHECK(code_of([&] { producer.send_batch(damaged); }) == "batch.corrupt");
  CHECK(code_of([&] { producer.send_batch("x"); }) == "batch.malformed");
}

}  // namespace

int main() {
  return run(
      {{"a batch keeps its numbers after a lost connection", a_batch_keeps_its_numbers_after_a_lost_connection},
       {"a batch that is refused for now is sent again before those behind it",
        a_batch_that_is_refused_for_now_is_sent_again_before_those_behind_it},
       {"batches behind a missing one get new numbers", batches_behind_a_missing_one_get_new_numbers},
       {"a producer that the broker has forgotten begins a new epoch",
        a_producer_that_the_broker_has_forgotten_begins_a_new_epoch},
       {"a refusal as out of order is no attempt", a_refusal_as_out_of_order_is_no_attempt},
       {"a new epoch waits until nothing is in flight", a_new_epoch_waits_until_nothing_is_in_flight},
       {"a new epoch begins after a batch with an unknown outcome",
        a_new_epoch_begins_after_a_batch_with_an_unknown_outcome},
       {"a hold ends when the time of what is in flight is over",
        a_hold_ends_when_the_time_of_what_is_in_flight_is_over},
       {"a refusal for now becomes final when the time is over", a_refusal_for_now_becomes_final_when_the_time_is_over},
       {"refusals for now are counted as attempts", refusals_for_now_are_counted_as_attempts},
       {"records that are refused fail, and the others are confirmed",
        records_that_are_refused_fail_and_the_others_are_confirmed},
       {"a refusal of what may be stored already says so", a_refusal_of_what_may_be_stored_already_says_so},
       {"a batch that was sent again without an answer is not reported as refused",
        a_batch_that_was_sent_again_without_an_answer_is_not_reported_as_refused},
       {"only idempotent producers number their batches", only_idempotent_producers_number_their_batches},
       {"a batch of another producer gets new numbers", a_batch_of_another_producer_gets_new_numbers},
       {"bytes that are no sealed batch are not sent", bytes_that_are_no_sealed_batch_are_not_sent}});
}
