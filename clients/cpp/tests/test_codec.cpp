// Control messages: the bytes of docs/reference/protocol.md, and what hostile ones do.
#include <string>

#include <linn/frame.h>

#include "bytes.h"
#include "check.h"
#include "codec.h"

using namespace linn::detail;

namespace {

std::string from_hex(std::string_view digits) {
  std::string bytes;
  int high = -1;
  for (const char digit : digits) {
    if (digit == ' ' || digit == '\n') continue;
    const int value = digit <= '9' ? digit - '0' : digit - 'a' + 10;
    if (high >= 0) bytes += static_cast<char>(high << 4 | value);
    high = high >= 0 ? -1 : value;
  }
  return bytes;
}

// "One publish, byte by byte" of the protocol's page.
const std::string hello_bytes = from_hex(
    "00 00 00 00 0a 00 00 00  00 00 00 00 02 00 01 00  01 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00"
    "00 00 00 00 01 00 02 00  01 00 01 00 00 00 00 00  09 00 00 00 0e 00 00 00  01 00 00 00 2a 00 00 00"
    "64 6f 63 73 00 00 00 00  01 00 00 00 2a 00 00 00  7a 73 74 64 00 00 00 00");
const std::string welcome_bytes = from_hex(
    "00 00 00 00 0d 00 00 00  00 00 00 00 02 00 01 00  01 00 00 00 00 00 00 00  00 00 01 00 00 00 00 00"
    "00 00 00 00 04 00 02 00  01 00 00 00 00 00 00 01  00 00 80 00 00 00 10 00  20 4e 00 00 e8 03 00 00"
    "e8 03 00 00 00 00 00 00  09 00 00 00 0e 00 00 00  01 00 00 00 2a 00 00 00  6c 69 6e 6e 00 00 00 00"
    "01 00 00 00 2a 00 00 00  7a 73 74 64 00 00 00 00");

void a_welcome_is_read_from_the_pages_bytes() {
  const IncomingFrame frame = decode_frame(welcome_bytes);
  const linn::BrokerInfo& info = std::get<linn::detail::Welcome>(frame.message).broker;
  CHECK(frame.correlation == 1 && frame.batches == 0);
  CHECK(info.name == "linn" && info.version == 1 && info.features == std::vector<std::string>{"zstd"});
  CHECK(info.frame_bytes_max == 16'777'216 && info.batch_bytes_max == 8'388'608 && info.message_bytes_max == 1'048'576);
  CHECK(info.keepalive_ms == 20'000 && info.inflight_max == 1'000 && info.subscriptions_max == 1'000);
}

/// As text, for comparing.
std::string told(const linn::FieldValue& field);

struct Teller {
  std::string operator()(bool truth) const { return truth ? "true" : "false"; }
  std::string operator()(std::int64_t number) const { return std::to_string(number); }
  std::string operator()(std::uint64_t number) const { return std::to_string(number); }
  std::string operator()(const std::string& text) const { return "'" + text + "'"; }
  std::string operator()(const linn::FieldValue::List& entries) const {
    std::string out = "[";
    for (const auto& entry : entries) out += told(entry) + " ";
    return out + "]";
  }
  std::string operator()(const linn::FieldValue::Fields& fields) const {
    std::string out = "(";
    for (const auto& [name, value] : fields) out += name + "=" + told(value) + " ";
    return out + ")";
  }
};

std::string told(const linn::FieldValue& field) { return std::visit(Teller{}, field.value); }
std::string told(const std::string& message) {
  const linn::FrameContent content = linn::read_frame(message);
  return std::to_string(content.correlation) + " " + content.member + told(linn::FieldValue{content.fields});
}

void what_is_written_says_what_was_meant() {
  CHECK(told(encode(1, Hello{1, 1, {"zstd"}, "docs"})) == told(hello_bytes));
  CHECK(told(hello_bytes) == "1 hello(versionMin=1 versionMax=1 features=['zstd' ] client='docs' producerId=0 producerKey=0 logsIn=false )");
  CHECK(told(encode(1, Hello{1, 1, {}, "docs", {256, 7}})).ends_with("producerId=256 producerKey=7 logsIn=false )"));
  const std::string publish = encode(2, Publish{"orders", true, linn::Acks::all, 3, true}, 2);
  CHECK(told(publish).starts_with("2 publish(target='orders' toExchange=true acks=2 partition=3 mandatory=true topics=[] )"));
  CHECK(linn::read_frame(publish).batches == 2);
  CHECK(told(encode(3, linn::FetchRequest{"t", 1, 1LL << 62, 2, 3, std::chrono::milliseconds(4), "key = 1", true})) ==
        "3 fetch(topic='t' partition=1 offset=4611686018427387904 bytesMin=2 bytesMax=3 waitMaxMs=4 where='key = 1' "
        "unsettled=true leaderEpoch=0 topicIdHigh=0 topicIdLow=0 formats=[] uncommitted=false )");
  CHECK(told(encode(4, FindOffset{"t", 1, -2})) == "4 findOffset(topic='t' partition=1 timestampMs=-2 place=0 )");
  CHECK(told(encode(4, FindOffset{"t", 1, 0, 2})) == "4 findOffset(topic='t' partition=1 timestampMs=0 place=2 )");
  CHECK(told(encode(5, Subscribe{"t", "g", 7, -1, {0, 2}, {9}, "true", "ann", "work"})) ==
        "5 subscribe(topic='t' group='g' credit=7 start=-1 partitions=[0 2 ] starts=[9 ] where='true' member='ann' "
        "sessionMs=0 isStatic=false leaderEpoch=0 topicIdHigh=0 topicIdLow=0 shared='work' formats=[] "
        "twoPhase=false uncommitted=false priority=0 )");
  CHECK(told(encode(0, Unsubscribe{9})) == "0 unsubscribe(subscription=9 )");
  CHECK(told(encode(0, Credit{9, 10})) == "0 credit(subscription=9 records=10 )");
  CHECK(told(encode(6, Settle{9, {{1, ~0ULL, 5, 6, linn::Verdict::extend, 70}}})) ==
        "6 settle(subscription=9 entries=[(partition=1 deliveryId=18446744073709551615 first=5 end=6 verdict=3 ms=70 "
        "reason=0 ) ] reasons=[] )");
  CHECK(told(encode(6, Settle{9, {{0, 1, 5, 6, linn::Verdict::nack, 0, "why"},
                                  {0, 1, 6, 7, linn::Verdict::nack, 0, "why"},
                                  {0, 1, 7, 8, linn::Verdict::ack},
                                  {0, 1, 8, 9, linn::Verdict::reject, 0, "b\xff"}}})) ==
        "6 settle(subscription=9 entries=[(partition=0 deliveryId=1 first=5 end=6 verdict=1 ms=0 reason=1 ) "
        "(partition=0 deliveryId=1 first=6 end=7 verdict=1 ms=0 reason=1 ) "
        "(partition=0 deliveryId=1 first=7 end=8 verdict=0 ms=0 reason=0 ) "
        "(partition=0 deliveryId=1 first=8 end=9 verdict=2 ms=0 reason=2 ) ] reasons=['why' 'b?' ] )");
  CHECK(told(encode(7, Describe{{"a", ""}})) == "7 describe(topics=['a' '' ] )");
  CHECK(told(encode(8, Administer{"topic.list", "{}"})) == "8 administer(verb='topic.list' arguments='{}' )");
  CHECK(told(encode(0, Goodbye{"done"})) == "0 goodbye(reason='done' )");
  CHECK(told(encode(9, Ping{})) == "9 ping()");
  CHECK(told(encode(~0ULL, Pong{})) == "18446744073709551615 pong()");
}

void what_only_clients_send_is_refused_of_a_broker() {
  CHECK(code_of([] { decode_frame(hello_bytes); }) == "protocol.malformed");
}

void every_cut_and_every_changed_bit_is_read_or_refused() {
  for (const std::string& whole : {hello_bytes, welcome_bytes}) {
    for (std::size_t size = 0; size < whole.size(); ++size)
      CHECK(code_of([&] { linn::read_frame(whole.substr(0, size)); }) == "protocol.malformed");
    for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
      std::string changed = whole;
      changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
      for (const std::string& code :
           {code_of([&] { linn::read_frame(changed); }), code_of([&] { decode_frame(changed); })})
        CHECK(code.empty() || code == "protocol.malformed");
    }
  }
}

void a_member_of_a_later_version_is_unknown() {
  std::string later = welcome_bytes;
  store(later.data() + 26, std::uint16_t{60'000});
  CHECK(std::holds_alternative<Unknown>(decode_frame(later).message));
  CHECK(linn::read_frame(later).member == "unknown");
}

}  // namespace

int main() {
  return run(
      {{"a welcome is read from the page's bytes", a_welcome_is_read_from_the_pages_bytes},
       {"what is written says what was meant", what_is_written_says_what_was_meant},
       {"what only clients send is refused of a broker", what_only_clients_send_is_refused_of_a_broker},
       {"every cut and every changed bit is read or refused", every_cut_and_every_changed_bit_is_read_or_refused},
       {"a member of a later version is unknown", a_member_of_a_later_version_is_unknown}});
}
