#include <linn/producer.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <random>
#include <utility>

#include "bytes.h"
#include "connection.h"

namespace linn {

using detail::Connection;

/// Waited for by any thread; the first that comes takes the answer for all.
struct Confirmation::State {
  std::shared_ptr<Connection> connection;
  std::mutex mutex;
  detail::PendingReply reply;
  std::optional<Placement> placement;
  std::optional<Error> error;
  /// Whether the application has heard of the error.
  bool told = false;

  State(std::shared_ptr<Connection> used, detail::PendingReply expected)
      : connection(std::move(used)), reply(std::move(expected)) {}

  Placement wait() {
    const std::lock_guard lock(mutex);
    if (!placement && !error) settle();
    if (!error) return *placement;
    told = true;
    throw *error;
  }

  /// Wait, and say nothing.
  void wait_quietly() {
    const std::lock_guard lock(mutex);
    if (!placement && !error) settle();
  }

 private:
  void settle() {
    try {
      const auto published = connection->wait_for<detail::Published>(reply);
      if (published.placements.size() != 1)
        throw Error("protocol.malformed", "one batch was answered with another number of placements");
      placement = published.placements.front();
    } catch (const Error& thrown) {
      error = thrown;
    }
  }
};

Placement Confirmation::wait() const { return state_->wait(); }

bool Confirmation::ready() const {
  const std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock) return false;
  if (state_->placement || state_->error) return true;
  return state_->reply.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

struct Producer::State {
  std::shared_ptr<Connection> connection;
  ProducerOptions options;
  BatchBuilder builder;
  std::deque<std::shared_ptr<Confirmation::State>> in_flight;
  std::optional<Error> untold;
  std::mt19937_64 random{std::random_device{}()};

  State(std::shared_ptr<Connection> used, ProducerOptions chosen)
      : connection(std::move(used)), options(std::move(chosen)) {}

  static std::size_t bytes_of(const Record& record) noexcept {
    std::size_t bytes = (record.value ? record.value->size() : 0) + (record.key ? record.key->size() : 0);
    for (const Header& header : record.headers) bytes += header.name.size() + (header.value ? header.value->size() : 0);
    return bytes;
  }

  void check_size(std::size_t bytes) const {
    const std::size_t most = connection->broker().message_bytes_max;
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

  std::shared_ptr<Confirmation::State> send(std::string_view batch) {
    const std::size_t most = connection->broker().frame_bytes_max;
    if (batch.size() > most)
      throw Error("batch.too_large",
                  "a batch of " + std::to_string(batch.size()) + " bytes, more than " + std::to_string(most));
    check_codec(batch);
    while (in_flight.size() >= std::max<std::size_t>(1, options.in_flight_max)) finish_oldest();
    const detail::Publish publish{options.exchange.value_or(options.topic), options.exchange.has_value(), options.acks,
                                  options.exchange ? -1 : options.partition, options.mandatory};
    auto sent = std::make_shared<Confirmation::State>(connection, connection->publish(publish, batch));
    in_flight.push_back(sent);
    return sent;
  }

  void check_codec(std::string_view batch) const {
    constexpr std::size_t codec_at = 88;
    const auto& features = connection->broker().features;
    if (batch.size() <= codec_at || batch[codec_at] != static_cast<char>(Codec::zstd)) return;
    if (std::find(features.begin(), features.end(), "zstd") == features.end())
      throw Error("message.unsupported", "compressed batches need zstd, here and at the broker");
  }

  void finish_oldest() {
    const auto oldest = std::move(in_flight.front());
    in_flight.pop_front();
    oldest->wait_quietly();
    const std::lock_guard lock(oldest->mutex);
    if (oldest->error && !oldest->told && !untold) untold = oldest->error;
    oldest->told = true;
  }

  std::shared_ptr<Confirmation::State> send_collected() {
    if (builder.empty()) return nullptr;
    return send(builder.seal(next_batch()));
  }
};

Producer::Producer(std::shared_ptr<Connection> connection, ProducerOptions options)
    : state_(std::make_unique<State>(std::move(connection), std::move(options))) {}
Producer::Producer(Producer&&) noexcept = default;
Producer& Producer::operator=(Producer&&) noexcept = default;
Producer::~Producer() = default;

Receipt Producer::publish(const Record& record) {
  state_->check_size(State::bytes_of(record));
  send();
  state_->builder.add(record);
  return send()->wait();
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

Confirmation Producer::send_batch(std::string message) { return Confirmation(state_->send(message)); }

Confirmation Producer::send_batch(const Batch& batch) {
  std::string message(batch.message());
  std::fill_n(message.begin() + 16, 32, '\0');
  return send_batch(std::move(message));
}

void Producer::flush() {
  send();
  while (!state_->in_flight.empty()) state_->finish_oldest();
  if (state_->untold) throw std::exchange(state_->untold, std::nullopt).value();
}

}  // namespace linn
