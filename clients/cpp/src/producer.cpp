#include <linn/producer.h>

#include <algorithm>
#include <deque>
#include <random>
#include <utility>

#include "lane.h"
#include "outbox.h"
#include "seal.h"
#include "session.h"

namespace linn {

using detail::Session;

struct Confirmation::State {
  std::shared_ptr<detail::Outbox> outbox;
  std::shared_ptr<detail::Shipment> shipment;
};

Placement Confirmation::wait() const { return state_->outbox->wait(*state_->shipment); }

bool Confirmation::ready() const { return state_->outbox->is_done(*state_->shipment); }

namespace {

/// Batches that a broker remembers of an idempotent producer.
constexpr std::size_t in_flight_limit = 8;

ProducerOptions checked(ProducerOptions options) {
  if (options.idempotent && options.in_flight_max > in_flight_limit)
    throw Error("message.invalid",
                "in_flight_max must be at most " + std::to_string(in_flight_limit) + " unless idempotent is false");
  return options;
}

/// The numbers of a producer's batches; nullptr if they have none.
std::unique_ptr<detail::Lane> lane_of(const ProducerOptions& options, const Session& session) {
  if (!options.idempotent || options.acks == Acks::none) return nullptr;
  return std::make_unique<detail::Lane>(session.producer_ids(), options.exchange || options.partition < 0);
}

}  // namespace

struct Producer::State {
  std::shared_ptr<Session> session;
  ProducerOptions options;
  std::shared_ptr<detail::Outbox> outbox;
  BatchBuilder builder;
  std::deque<std::shared_ptr<Confirmation::State>> in_flight;
  std::optional<Error> untold;
  std::mt19937_64 random{std::random_device{}()};

  State(std::shared_ptr<Session> used, ProducerOptions chosen)
      : session(std::move(used)),
        options(checked(std::move(chosen))),
        outbox(std::make_shared<detail::Outbox>(
            detail::Publish{options.exchange.value_or(options.topic), options.exchange.has_value(), options.acks,
                            options.exchange ? -1 : options.partition, options.mandatory},
            session->options(), session->outage(), session->alarm(), session->leaders(), lane_of(options, *session))) {
    session->add(outbox);
    if (!options.exchange) session->wait_for_leader_of(options.topic);
  }

  static std::size_t bytes_of(const Record& record) noexcept {
    std::size_t bytes = (record.value ? record.value->size() : 0) + (record.key ? record.key->size() : 0);
    for (const Header& header : record.headers) bytes += header.name.size() + (header.value ? header.value->size() : 0);
    return bytes;
  }

  void check_size(std::size_t bytes) const {
    const std::size_t most = session->broker().message_bytes_max;
    if (bytes <= most) return;
    throw Error("message.too_large",
                "a message of " + std::to_string(bytes) + " bytes, more than " + std::to_string(most));
  }

  BatchBuilder::Options next_batch() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const std::int64_t now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
    return {.base_id = next_id(now_ms),
            .timestamp_ms = now_ms,
            .codec = options.codec,
            .key_hashes = options.partition < 0 || options.exchange};
  }

  /// A UUID of version 7 whose last 24 bits are for counting.
  Uuid next_id(std::int64_t now_ms) {
    const std::uint64_t high = static_cast<std::uint64_t>(now_ms) << 16 | 0x7000 | (random() & 0xfff);
    const std::uint64_t low = (random() & 0x3fff'ffff'ff00'0000) | 0x8000'0000'0000'0000;
    return {high, low};
  }

  std::shared_ptr<Confirmation::State> send(std::string batch) {
    const std::size_t most = session->broker().frame_bytes_max;
    if (batch.size() > most)
      throw Error("batch.too_large",
                  "a batch of " + std::to_string(batch.size()) + " bytes, more than " + std::to_string(most));
    check_codec(batch);
    while (in_flight.size() >= std::max<std::size_t>(1, options.in_flight_max)) finish_oldest();
    auto sent = std::make_shared<Confirmation::State>(Confirmation::State{outbox, outbox->put(std::move(batch))});
    in_flight.push_back(sent);
    outbox->send_all(*session);
    return sent;
  }

  void check_codec(std::string_view batch) const {
    constexpr std::size_t codec_at = 88;
    const auto& features = session->broker().features;
    if (batch.size() <= codec_at || batch[codec_at] != static_cast<char>(Codec::zstd)) return;
    if (std::find(features.begin(), features.end(), "zstd") == features.end())
      throw Error("message.unsupported", "compressed batches need zstd, here and at the broker");
  }

  void finish_oldest() {
    const auto oldest = std::move(in_flight.front());
    in_flight.pop_front();
    const auto error = outbox->wait_for_untold(*oldest->shipment);
    if (error && !untold) untold = error;
  }

  std::shared_ptr<Confirmation::State> send_collected() {
    if (builder.empty()) return nullptr;
    return send(builder.build(next_batch()));
  }
};

Producer::Producer(std::shared_ptr<Session> session, ProducerOptions options)
    : state_(std::make_unique<State>(std::move(session), std::move(options))) {}
Producer::Producer(Producer&&) noexcept = default;
Producer& Producer::operator=(Producer&&) noexcept = default;
Producer::~Producer() = default;

Receipt Producer::publish(const Record& record) {
  state_->check_size(State::bytes_of(record));
  send();
  state_->builder.add(record);
  const std::optional<Confirmation> sent = send();
  return sent->wait();
}

void Producer::add(const Record& record) {
  state_->check_size(State::bytes_of(record));
  state_->builder.add(record);
  if (state_->builder.bytes() >= state_->options.batch_bytes) send();
}

void Producer::add(std::string_view value, std::optional<std::string_view> key) {
  state_->check_size(value.size() + (key ? key->size() : 0));
  state_->builder.add(value, key);
  if (state_->builder.bytes() >= state_->options.batch_bytes) send();
}

std::optional<Confirmation> Producer::send() {
  auto sent = state_->send_collected();
  return sent ? std::optional(Confirmation(std::move(sent))) : std::nullopt;
}

Confirmation Producer::send_batch(std::string message) {
  detail::check_seal(message);
  return Confirmation(state_->send(std::move(message)));
}

Confirmation Producer::send_batch(const Batch& batch) {
  std::string message(batch.message());
  std::fill_n(message.begin() + 16, 32, '\0');
  return Confirmation(state_->send(std::move(message)));
}

void Producer::flush() {
  send();
  while (!state_->in_flight.empty()) state_->finish_oldest();
  if (state_->untold) throw std::exchange(state_->untold, std::nullopt).value();
}

}  // namespace linn
