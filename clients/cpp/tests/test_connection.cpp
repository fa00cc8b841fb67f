// A connection against a scripted broker: answers, failures, keepalive, and what a broker may do wrong.
#include <chrono>
#include <future>
#include <string>

#include <linn/linn.h>

#include "check.h"
#include "connection.h"
#include "scripted_broker.h"

using namespace std::chrono_literals;
using linn::Client;
using linn::ClientOptions;
using linn::detail::Connection;
using linn::detail::FindOffset;
using linn::detail::FoundOffset;

namespace {

/// One that gives up at once.
ClientOptions hasty() {
  return {.retries_max = 0, .log = [](const std::string&) {}};
}

const auto find_offset = [](const Client& client) { return client.find_offset("t", 0, -1); };

/// The code of what connecting to such a broker throws.
std::string connecting(const std::function<void(Peer&)>& script, ClientOptions options = {}) {
  ScriptedBroker broker(script);
  return code_of([&] { Client::connect(broker.url(), options); });
}

void what_is_no_welcome_is_refused() {
  CHECK(connecting([](Peer& peer) { peer.welcome(20'000, 2); }) == "protocol.version_unsupported");
  CHECK(connecting([](Peer& peer) { peer.fail(peer.read().correlation, "protocol.version_unsupported"); }) ==
        "protocol.version_unsupported");
  CHECK(connecting([](Peer& peer) { peer.found(peer.read().correlation, 1); }) == "protocol.malformed");
  CHECK(connecting([](Peer& peer) { peer.read(), peer.send_bytes("HTTP/1.1 400 Bad Request\r\n\r\n"); }) ==
        "protocol.malformed");
  CHECK(connecting([](Peer& peer) { peer.read(); }) == "connection.lost");
  CHECK(connecting(
            [](Peer& peer) {
              while (peer.read_bytes()) {
              }
            },
            {.connect_timeout = 50ms}) == "connection.failed");
  CHECK(code_of([] { Client::connect("linn+unix:///nowhere/at/all"); }) == "connection.failed");
}

void answers_find_their_requests_in_any_order() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    const auto first = peer.read().correlation, second = peer.read().correlation;
    peer.found(second, 2);
    peer.found(first, 1);
    peer.fail(peer.read().correlation, "topic.unknown");
    peer.found(peer.read().correlation, 4);
  });
  const auto connection = Connection::open(broker.url(), {});
  auto first = connection->request(FindOffset{"t", 0, -1});
  auto second = connection->request(FindOffset{"t", 0, -1});
  CHECK(connection->wait_for<FoundOffset>(first).offset == 1);
  CHECK(connection->wait_for<FoundOffset>(second).offset == 2);
  auto third = connection->request(FindOffset{"t", 0, -1});
  CHECK(code_of([&] { connection->wait_for<FoundOffset>(third); }) == "topic.unknown");
  auto fourth = connection->request(FindOffset{"t", 0, -1});
  CHECK(connection->wait_for<FoundOffset>(fourth).offset == 4);
  broker.finish();
}

/// The code that a request ends with, and the one behind it.
std::string ending(const std::function<void(Peer&, std::uint64_t)>& script) {
  ScriptedBroker broker([&](Peer& peer) {
    peer.welcome();
    script(peer, peer.read().correlation);
  });
  const Client client = Client::connect(broker.url(), hasty());
  const std::string code = code_of([&] { find_offset(client); });
  CHECK(code_of([&] { find_offset(client); }) == code);
  CHECK(code_of([&] { client.producer({.topic = "t"}).publish({}); }) == code);
  return code;
}

void every_request_ends_when_the_connection_does() {
  CHECK(ending([](Peer&, std::uint64_t) {}) == "connection.lost");
  CHECK(ending([](Peer& peer, std::uint64_t) { peer.fail(0, "broker.stopping"); }) == "broker.stopping");
  CHECK(ending([](Peer& peer, std::uint64_t correlation) { peer.found(correlation + 1, 1); }) == "protocol.malformed");
  CHECK(ending([](Peer& peer, std::uint64_t) { peer.send_bytes(std::string(8, '\xff')); }) == "protocol.malformed");
  CHECK(ending([](Peer& peer, std::uint64_t) { peer.send_bytes(std::string("\0\0\0\0\xff\xff\xff\x7f", 8)); }) ==
        "protocol.frame_too_large");
  CHECK(ending([](Peer& peer, std::uint64_t correlation) {
          peer.send(correlation, [](wire::Frame::Builder root) { root.setBatches(3), root.setDone(); });
        }) == "protocol.malformed");
}

void an_answer_of_another_kind_is_refused() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    peer.send(peer.read().correlation, [](wire::Frame::Builder root) { root.setDone(); });
    peer.found(peer.read().correlation, 9);
  });
  const Client client = Client::connect(broker.url());
  CHECK(code_of([&] { find_offset(client); }) == "protocol.malformed");
  CHECK(find_offset(client) == 9);
}

void a_late_answer_disturbs_nobody() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    const auto first = peer.read().correlation, second = peer.read().correlation;
    peer.found(first, 1);
    peer.found(second, 2);
  });
  const auto connection = Connection::open(broker.url(), {.request_timeout = 20ms});
  auto first = connection->request(FindOffset{"t", 0, -1});
  CHECK(code_of([&] { connection->wait_for<FoundOffset>(first); }) == "request.timeout");
  auto second = connection->request(FindOffset{"t", 0, -1});
  CHECK(Connection::expect<FoundOffset>(Connection::wait(second, Clock::now() + 10s)).first.offset == 2);
}

void a_subscription_that_nobody_waits_for_is_ended() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    const auto correlation = peer.read().correlation;
    const linn::FrameContent next = peer.read();  // It has given up when it sends another request.
    peer.send(correlation, [](wire::Frame::Builder root) { root.initSubscribed().setSubscription(5); });
    const linn::FrameContent ended = peer.read();
    if (ended.member != "unsubscribe" || std::get<std::uint64_t>(ended.fields.at(0).second.value) != 5)
      throw std::runtime_error("the subscription was left");
    peer.found(next.correlation, 1);
  });
  const Client client = Client::connect(broker.url(), {.request_timeout = 100ms});
  CHECK(code_of([&] { client.consumer({.topic = "t"}); }) == "request.timeout");
  code_of([&] { find_offset(client); });
  broker.finish();
}

void pings_are_answered_and_sent() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome(100);
    peer.send(77, [](wire::Frame::Builder root) { root.setPing(); });
    bool answered = false, pinged = false;
    while (!answered || !pinged) {
      const linn::FrameContent content = linn::read_frame(peer.read_bytes().value());
      answered = answered || (content.member == "pong" && content.correlation == 77);
      if (content.member == "ping") {
        pinged = true;
        peer.send(content.correlation, [](wire::Frame::Builder root) { root.setPong(); });
      }
    }
  });
  const Client client = Client::connect(broker.url());
  broker.finish();
}

void a_broker_that_is_silent_is_given_up() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome(100);
    while (peer.read_bytes()) {
    }
  });
  const Client client = Client::connect(broker.url(), hasty());
  CHECK(code_of([&] { find_offset(client); }) == "connection.lost");
}

void answers_are_read_while_a_publish_waits() {
  constexpr std::size_t bytes = 16 << 20;
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    // More than the socket holds, before anything of the publish is read.
    const std::string text(1 << 20, 'x');
    for (int count = 0; count < 16; ++count)
      peer.send(0, [&](wire::Frame::Builder root) { root.initEnded().setText(text.c_str()); });
    const linn::FrameContent publish = peer.read();
    peer.read_bytes();
    peer.send(publish.correlation,
              [](wire::Frame::Builder root) { root.initPublished().initPlacements(1)[0].setBaseOffset(7); });
  });
  const Client client = Client::connect(broker.url());
  CHECK(client.producer({.topic = "t"}).publish({.value = std::string(bytes, 'x')}).base_offset == 7);
}

void in_flight_is_bounded_and_failures_are_told_once() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    for (int count = 0; count < 3; ++count) {
      const auto correlation = peer.read().correlation;
      peer.read_bytes();
      if (count == 1)
        peer.fail(correlation, "topic.full");
      else
        peer.send(correlation, [](wire::Frame::Builder root) { root.initPublished().initPlacements(1); });
    }
  });
  const Client client = Client::connect(broker.url());
  linn::Producer producer = client.producer({.topic = "t", .in_flight_max = 1});
  for (const char* value : {"a", "b", "c"}) {
    producer.add(value);
    producer.send();
  }
  CHECK(code_of([&] { producer.flush(); }) == "topic.full");
  CHECK(code_of([&] { producer.flush(); }).empty());
}

void closing_lets_the_broker_read_everything() {
  ScriptedBroker broker([](Peer& peer) {
    peer.welcome();
    const linn::FrameContent publish = peer.read();
    peer.read_bytes();
    if (publish.member != "publish" || peer.read_bytes())
      throw std::runtime_error("the client did not end after its publish");
  });
  {
    const Client client = Client::connect(broker.url());
    linn::Producer producer = client.producer({.topic = "t"});
    producer.add(std::string(100'000, 'x'));
    producer.send();
  }
  broker.finish();
}

}  // namespace

int main() {
  return run({{"what is no welcome is refused", what_is_no_welcome_is_refused},
              {"answers find their requests in any order", answers_find_their_requests_in_any_order},
              {"every request ends when the connection does", every_request_ends_when_the_connection_does},
              {"an answer of another kind is refused", an_answer_of_another_kind_is_refused},
              {"a late answer disturbs nobody", a_late_answer_disturbs_nobody},
              {"a subscription that nobody waits for is ended", a_subscription_that_nobody_waits_for_is_ended},
              {"pings are answered and sent", pings_are_answered_and_sent},
              {"a broker that is silent is given up", a_broker_that_is_silent_is_given_up},
              {"answers are read while a publish waits", answers_are_read_while_a_publish_waits},
              {"in flight is bounded, and failures are told once", in_flight_is_bounded_and_failures_are_told_once},
              {"closing lets the broker read everything", closing_lets_the_broker_read_everything}});
}
