// The conformance agent: one JSON command per line in, one JSON answer per line out. See docs/how-to/write-a-client.md.

#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include <linn/frame.h>
#include <linn/linn.h>

#include "base64.h"
#include "json.h"

namespace {

using linn::detail::base64_decode;
using linn::detail::base64_encode;
using std::chrono::milliseconds;

// --- records ---

Json bytes_of(std::optional<std::string_view> bytes) { return bytes ? Json(base64_encode(*bytes)) : Json(); }

std::optional<std::string> bytes_in(const Json& said) {
  if (said.is_null()) return std::nullopt;
  auto bytes = base64_decode(said.text());
  if (!bytes) throw std::runtime_error("not base64");
  return bytes;
}

linn::LabelValue label_in(const Json& said) {
  if (const auto* text = std::get_if<std::string>(&said.value)) return *text;
  if (const auto* number = std::get_if<std::int64_t>(&said.value)) return *number;
  if (const auto* real = std::get_if<double>(&said.value)) return *real;
  if (const auto* truth = std::get_if<bool>(&said.value)) return *truth;
  throw linn::Error("message.invalid", "a label is text, a 64-bit integer, a float or a truth");
}

Json label_out(const linn::LabelValue& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

template <typename Number>
Number narrow(const Json& said) {
  const std::uint64_t number = said.natural();
  if (number > std::numeric_limits<Number>::max())
    throw linn::Error("message.invalid", "a number of the record is too large");
  return static_cast<Number>(number);
}

linn::Record record_in(const Json& said) {
  linn::Record record;
  record.value = bytes_in(said["value"]);
  record.key = bytes_in(said["key"]);
  record.routing_key = said["routing_key"].text();
  for (const auto& [name, value] : said["labels"].object()) record.labels.push_back({name, label_in(value)});
  for (const auto& [name, value] : said["headers"].object()) record.headers.push_back({name, bytes_in(value)});
  if (said.has("timestamp_ms")) record.timestamp_ms = said["timestamp_ms"].number();
  if (said.has("id")) record.id = linn::Uuid::parse(said["id"].text());
  record.priority = narrow<std::uint8_t>(said["priority"]);
  record.delay_ms = narrow<std::uint32_t>(said["delay_ms"]);
  record.ttl_ms = narrow<std::uint32_t>(said["ttl_ms"]);
  return record;
}

Json::Object record_out(const linn::RecordView& record) {
  Json::Object labels;
  for (const linn::Label& label : record.labels()) labels.emplace_back(label.name, label_out(label.value));
  Json::Object headers;
  for (const linn::Header& header : record.headers()) headers.emplace_back(header.name, bytes_of(header.value));
  return {{"value", bytes_of(record.value())},   {"key", bytes_of(record.key())},
          {"routing_key", record.routing_key()}, {"labels", std::move(labels)},
          {"headers", std::move(headers)},       {"timestamp_ms", record.timestamp_ms()},
          {"id", record.id().to_string()},       {"priority", std::uint32_t{record.priority()}},
          {"delay_ms", record.delay_ms()},       {"ttl_ms", record.ttl_ms()},
          {"offset", record.offset()}};
}

/// With where it lies, and how it came.
Json stored_out(const linn::RecordView& record, std::int32_t partition, std::uint16_t attempt,
                std::uint64_t delivery_id) {
  Json::Object said = record_out(record);
  said.emplace_back("partition", partition);
  said.emplace_back("attempt", std::uint32_t{attempt});
  said.emplace_back("delivery_id", delivery_id);
  return said;
}

Json header_out(const linn::BatchHeader& header) {
  return Json::Object{{"baseOffset", header.base_offset},
                      {"appendTimeMs", header.append_time_ms},
                      {"durableOffset", header.durable_offset},
                      {"leaderEpoch", header.leader_epoch},
                      {"stampCrc", header.stamp_crc},
                      {"crc", header.crc},
                      {"count", header.count},
                      {"firstTimestampMs", header.first_timestamp_ms},
                      {"maxTimestampMs", header.max_timestamp_ms},
                      {"producerId", header.producer_id},
                      {"firstSequence", header.first_sequence},
                      {"producerEpoch", std::uint32_t{header.producer_epoch}},
                      {"attributes", std::uint32_t{header.attributes}},
                      {"codec", std::uint32_t{header.codec}},
                      {"format", std::uint32_t{header.format}},
                      {"pairCount", std::uint32_t{header.pair_count}},
                      {"bodyBytes", header.body_bytes},
                      {"idHigh", header.id_high},
                      {"idLow", header.id_low},
                      {"transaction", header.transaction},
                      {"offsetSpan", header.offset_span}};
}

// --- frames ---

Json field_out(const linn::FieldValue& field);

Json fields_out(const linn::FieldValue::Fields& fields) {
  Json::Object said;
  for (const auto& [name, value] : fields) said.emplace_back(name, field_out(value));
  return said;
}

struct FieldWriter {
  Json operator()(const linn::FieldValue::List& entries) const {
    Json::List said;
    for (const linn::FieldValue& entry : entries) said.push_back(field_out(entry));
    return said;
  }
  Json operator()(const linn::FieldValue::Fields& fields) const { return fields_out(fields); }
  template <typename Plain>
  Json operator()(const Plain& plain) const {
    return Json(plain);
  }
};

Json field_out(const linn::FieldValue& field) { return std::visit(FieldWriter{}, field.value); }

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("can't read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

linn::Acks acks_of(const std::string& name) {
  if (name == "none") return linn::Acks::none;
  if (name == "leader") return linn::Acks::leader;
  if (name == "all") return linn::Acks::all;
  throw std::runtime_error("acks are none, leader or all");
}

linn::Verdict verdict_of(const std::string& name) {
  if (name == "ack") return linn::Verdict::ack;
  if (name == "nack") return linn::Verdict::nack;
  if (name == "reject") return linn::Verdict::reject;
  if (name == "extend") return linn::Verdict::extend;
  throw std::runtime_error("a verdict is ack, nack, reject or extend");
}

const char* name_of(linn::SubscriptionKind kind) {
  switch (kind) {
    case linn::SubscriptionKind::shared: return "shared";
    case linn::SubscriptionKind::group: return "group";
    case linn::SubscriptionKind::reader: return "reader";
  }
  return "";
}

linn::Codec codec_of(const Json& command) { return command["zstd"].truth() ? linn::Codec::zstd : linn::Codec::none; }

// --- commands ---

class Agent {
 public:
  /// One command's answer. Throws what it fails with.
  Json::Object carry_out(const Json& command) {
    const std::string op = command["op"].text();
    if (op == "connect") return connect(command);
    if (op == "publish") return publish(command);
    if (op == "subscribe") return subscribe(command);
    if (op == "next") return next(command);
    if (op == "settle") return settle(command);
    if (op == "fetch") return fetch(command);
    if (op == "decode") return decode(command);
    if (op == "encode") return encode(command);
    if (op == "frame") return frame(command);
    if (op == "close") return close();
    throw std::runtime_error("there is no op \"" + op + "\"");
  }

 private:
  Json::Object connect(const Json& command) {
    linn::ClientOptions options{.name = "linn-cpp-agent"};
    if (command.has("ca")) options.tls = linn::TlsOptions{.ca = command["ca"].text()};
    if (command.has("user")) options.login = linn::Password(command["user"].text(), command["password"].text());
    if (command.has("token")) options.login = linn::Token(command["token"].text());
    client_ = linn::Client::connect(command["url"].text(), options);
    return {{"broker", client_->broker().name}, {"version", std::uint32_t{client_->broker().version}}};
  }

  Json::Object publish(const Json& command) {
    linn::ProducerOptions options;
    options.topic = command["topic"].text();
    if (command.has("exchange")) options.exchange = command["exchange"].text();
    options.partition = static_cast<std::int32_t>(command["partition"].number(-1));
    options.acks = acks_of(command["acks"].text("all"));
    options.codec = codec_of(command);
    options.mandatory = command["mandatory"].truth();
    options.batch_bytes = std::numeric_limits<std::size_t>::max();
    linn::Producer producer = client().producer(options);
    for (const Json& record : command["records"].list()) producer.add(record_in(record));
    const auto confirmation = producer.send();
    Json::List placements;
    if (confirmation) {
      const linn::Placement placement = confirmation->wait();
      if (!placement.returned.empty()) throw linn::Error("exchange.unroutable", "no topic takes all of the records");
      if (options.acks != linn::Acks::none) placements.push_back(placement_out(placement));
    }
    return {{"placements", std::move(placements)}};
  }

  static Json placement_out(const linn::Placement& placement) {
    return Json::Object{
        {"partition", placement.partition}, {"base_offset", placement.base_offset}, {"copies", placement.copies}};
  }

  Json::Object subscribe(const Json& command) {
    linn::ConsumerOptions options{.topic = command["topic"].text(), .group = command["group"].text()};
    if (command.has("credit")) options.prefetch = static_cast<std::uint32_t>(command["credit"].number());
    options.renewal_max = milliseconds(0);
    options.start = command["start"].number(linn::from_start);
    options.where = command["where"].text();
    options.shared = command["shared"].text();
    options.name = command["name"].text();
    linn::Consumer consumer = client().consumer(options);
    const std::uint32_t number = ++last_number_;
    Json::Object said{{"subscription", number}, {"kind", name_of(consumer.kind())}};
    consumers_.insert_or_assign(number, std::move(consumer));
    return said;
  }

  Json::Object next(const Json& command) {
    linn::Consumer& consumer = consumer_of(command);
    const std::uint64_t records_max = command["records_max"].natural(1);
    milliseconds timeout(command["timeout_ms"].number());
    Json::List records;
    while (records.size() < records_max) {
      const auto message = consumer.next(timeout);
      if (!message) break;
      records.push_back(stored_out(message->record(), message->partition, message->attempt, message->delivery_id));
      timeout = milliseconds(0);
    }
    return {{"records", std::move(records)}};
  }

  Json::Object settle(const Json& command) {
    const linn::Settlement entry{.partition = static_cast<std::int32_t>(command["partition"].number()),
                                 .delivery_id = command["delivery_id"].natural(),
                                 .first = command["first"].number(),
                                 .end = command["end"].number(),
                                 .verdict = verdict_of(command["verdict"].text()),
                                 .ms = static_cast<std::uint32_t>(command["ms"].number()),
                                 .reason = command["reason"].text()};
    Json::List refused;
    for (const linn::Refusal& refusal : consumer_of(command).settle({entry}))
      refused.push_back(Json::Object{{"entry", refusal.entry}, {"code", refusal.code}, {"text", refusal.text}});
    return {{"refused", std::move(refused)}};
  }

  Json::Object fetch(const Json& command) {
    linn::FetchRequest request{.topic = command["topic"].text(),
                               .partition = static_cast<std::int32_t>(command["partition"].number()),
                               .offset = command["offset"].number()};
    request.where = command["where"].text();
    request.unsettled = command["unsettled"].truth();
    request.bytes_max = static_cast<std::uint32_t>(command["bytes_max"].number(request.bytes_max));
    const linn::Fetched fetched = client().fetch(request);
    Json::List records;
    for (const linn::Batch& batch : fetched.batches)
      for (const linn::RecordView record : batch) records.push_back(stored_out(record, request.partition, 0, 0));
    return {{"records", std::move(records)},
            {"start_offset", fetched.start_offset},
            {"high_watermark", fetched.high_watermark},
            {"next_offset", fetched.next_offset}};
  }

  static Json::Object decode(const Json& command) {
    const linn::Batch batch = linn::Batch::decode(content_of(command["path"].text()));
    Json::List records;
    for (const linn::RecordView record : batch) records.push_back(record_out(record));
    return {{"records", std::move(records)}, {"header", header_out(batch.header())}};
  }

  static Json::Object encode(const Json& command) {
    linn::BatchBuilder::Options options{.codec = codec_of(command)};
    if (command.has("base_id")) options.base_id = linn::Uuid::parse(command["base_id"].text());
    linn::BatchBuilder builder(options);
    for (const Json& record : command["records"].list()) builder.add(record_in(record));
    return {{"batch", base64_encode(builder.seal())}};
  }

  static Json::Object frame(const Json& command) {
    const linn::FrameContent content = linn::read_frame(content_of(command["path"].text()));
    return {{"member", content.member},
            {"correlation", content.correlation},
            {"batches", std::uint32_t{content.batches}},
            {"fields", fields_out(content.fields)}};
  }

  Json::Object close() {
    consumers_.clear();
    if (client_) client_->close();
    client_.reset();
    return {};
  }

  linn::Client& client() {
    if (!client_) throw linn::Error("connection.lost", "the agent is not connected", true);
    return *client_;
  }

  linn::Consumer& consumer_of(const Json& command) {
    const auto found = consumers_.find(static_cast<std::uint32_t>(command["subscription"].natural()));
    if (found == consumers_.end())
      throw linn::Error("delivery.subscription_unknown", "the agent has no such subscription");
    return found->second;
  }

  std::optional<linn::Client> client_;
  std::map<std::uint32_t, linn::Consumer> consumers_;
  std::uint32_t last_number_ = 0;
};

Json failure(std::string_view code, std::string_view text) {
  return Json::Object{{"error", Json::Object{{"code", code}, {"text", text}}}};
}

Json answer_to(Agent& agent, const std::string& line) {
  try {
    return Json::Object{{"ok", agent.carry_out(Json::parse(line))}};
  } catch (const linn::Error& error) {
    return failure(error.code(), error.text());
  } catch (const std::exception& error) {
    return failure("linn.internal", error.what());
  }
}

}  // namespace

int main() {
  Agent agent;
  for (std::string line; std::getline(std::cin, line);) {
    if (line.empty()) continue;
    std::cout << answer_to(agent, line).dump() << std::endl;
  }
}
