#include "connection.h"

#include <algorithm>
#include <array>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace linn::detail {
namespace {

using std::chrono::milliseconds;

constexpr std::uint16_t version = 1;
constexpr std::uint16_t batches_max = 1'024;
constexpr std::size_t receive_bytes = 256 << 10;
constexpr milliseconds keepalive_min{100};   // Whatever a broker asks for.
constexpr milliseconds closing_time{1'000};  // For a broker to read what was sent and to close.

Error lost(const std::string& text) { return {"connection.lost", text, true}; }
Error no_broker() { return {"protocol.malformed", "the peer is not a linn broker"}; }
Error closed() { return {"client.closed", "the client was closed"}; }

bool may_have_batches(const Incoming& message) noexcept {
  return std::holds_alternative<FetchedHead>(message) || std::holds_alternative<Deliver>(message);
}

}  // namespace

// --- life ---

Connection::Connection(Socket socket, ClientOptions options, std::shared_ptr<Alarm> alarm)
    : socket_(std::move(socket)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      options_(std::move(options)),
      alarm_(std::move(alarm)),
      frames_(options_.receive_bytes_max),
      buffer_(receive_bytes) {
  if (wake_.descriptor() < 0) throw Error("connection.failed", "no descriptor is left", true);
}

std::shared_ptr<Connection> Connection::open(std::string_view url, ClientOptions options,
                                             std::shared_ptr<Alarm> alarm, ProducerClaim ids,
                                             milliseconds keepalive_max) {
  const Deadline deadline = deadline_in(options.connect_timeout);
  const Address address = parse_url(url);
  const std::shared_ptr<Connection> connection(
      new Connection(Socket::connect(address, deadline, options.tls), options, std::move(alarm)));
  connection->welcome(deadline, ids, address.is_tls || !address.path.empty());
  connection->keepalive_ = std::min(connection->keepalive_, keepalive_max);
  connection->reader_ = std::thread([raw = connection.get()] { raw->run(); });
  return connection;
}

/// Say hello, log in where the broker asks for it, and wait for welcome.
void Connection::welcome(Deadline deadline, ProducerClaim ids, bool is_private) {
  Hello hello{version, version, {}, options_.name, ids, options_.login.has_value()};
  if (zstd_available()) hello.features.emplace_back("zstd");
  Incoming message = asked(hello, deadline);
  if (const auto* challenge = std::get_if<Challenge>(&message))
    message = log_in({challenge->mechanisms, socket_.server_end_point(), is_private}, deadline);
  auto* welcome = std::get_if<Welcome>(&message);
  if (welcome == nullptr) throw no_broker();
  if (welcome->broker.version != version)
    throw Error("protocol.version_unsupported",
                "the broker speaks version " + std::to_string(welcome->broker.version));
  broker_ = std::move(welcome->broker);
  user_ = std::move(welcome->user);
  keepalive_ =
      broker_.keepalive_ms == 0 ? milliseconds(0) : std::max(keepalive_min, milliseconds(broker_.keepalive_ms));
  last_heard_ = last_pinged_ = Clock::now();
  last_sent_ = last_heard_.time_since_epoch().count();
}

/// The broker's answer to the login's last message, which has proved what it had to.
Incoming Connection::log_in(const Offer& offer, Deadline deadline) {
  const auto exchange = begin_login(options_.login, offer);
  std::string data = exchange->begin();
  for (;;) {
    Incoming message = asked(Authenticate{exchange->mechanism(), data}, deadline);
    if (const auto* welcome = std::get_if<Welcome>(&message)) exchange->end(welcome->login);
    const auto* next = std::get_if<Challenge>(&message);
    if (next == nullptr) return message;
    data = exchange->answer(next->data);
  }
}

/// Send a message of the handshake; its answer. Throws Error: the broker's refusal, and what `open` throws.
template <typename Message>
Incoming Connection::asked(const Message& message, Deadline deadline) {
  const std::string bytes = encode(++last_correlation_, message);
  const std::array<std::string_view, 1> buffers{bytes};
  socket_.send_all(buffers, options_.connect_timeout);
  std::optional<std::string> answer;
  while (!(answer = frames_.next())) {
    if (!socket_.wait_readable(deadline))
      throw Error("connection.failed", "the broker did not say welcome in time", true);
    frames_.feed({buffer_.data(), socket_.receive(buffer_.data(), buffer_.size())});
  }
  IncomingFrame frame = decode_frame(*answer);
  if (const auto* failed = std::get_if<Failed>(&frame.message))
    throw Error(failed->code, failed->text, failed->retriable);
  if (frame.correlation != last_correlation_ || frame.batches != 0) throw no_broker();
  return std::move(frame.message);
}

Connection::~Connection() { end(); }

void Connection::wait_for_answers() const {
  std::unique_lock lock(mutex_);
  answered_.wait_until(lock, deadline_in(options_.request_timeout), [&] { return waiting_.empty() || failure_; });
}

void Connection::end() noexcept {
  const std::lock_guard ending(end_mutex_);
  if (!reader_.joinable()) return;
  closing_until_ = (Clock::now() + closing_time).time_since_epoch().count();
  closing_ = true;
  socket_.end_sending();
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.descriptor(), &one, sizeof one);
  reader_.join();
}

void Connection::unsubscribe(const std::shared_ptr<Subscription>& subscription) noexcept {
  const std::vector<Settlement> unread = subscription->abandon();
  try {
    if (!forget(*subscription)) return;
    const std::uint32_t number = subscription->said().subscription;
    give_back(number, unread);
    post(Unsubscribe{number});
  } catch (const std::exception&) {
    // The connection is lost, and the subscription with it.
  }
}

bool Connection::forget(const Subscription& subscription) noexcept {
  const std::lock_guard lock(mutex_);
  return std::erase_if(subscriptions_, [&](const auto& known) { return known.second.get() == &subscription; }) > 0;
}

// --- sending ---

std::optional<Error> Connection::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Connection::settle_quietly(std::uint32_t subscription, const std::vector<Settlement>& entries) {
  std::uint64_t correlation = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    correlation = ++last_correlation_;
    waiting_.emplace(correlation, Waiting{[](const Outcome&, bool) {}, nullptr});
  }
  post_soon(encode(correlation, Settle{subscription, entries}));
}

void Connection::give_back(std::uint32_t subscription, const std::vector<Settlement>& unread) {
  if (unread.empty()) return;
  // Without credit the broker does not lease it to this subscription again.
  post_soon(encode(0, Credit{subscription, 0}));
  settle_quietly(subscription, unread);
}

std::uint64_t Connection::expect_answer(OnOutcome told, std::shared_ptr<Subscription> opens) {
  std::unique_lock lock(mutex_);
  const std::size_t most = std::max<std::size_t>(1, broker_.inflight_max);
  const auto has_room = [&] { return failure_ || waiting_.size() < most; };
  if (!answered_.wait_until(lock, deadline_in(options_.request_timeout), has_room))
    throw Error("request.timeout", "no request was answered in time", true);
  if (failure_) throw *failure_;
  waiting_.emplace(++last_correlation_, Waiting{std::move(told), std::move(opens)});
  return last_correlation_;
}

void Connection::forget(std::uint64_t correlation) noexcept {
  const std::lock_guard lock(mutex_);
  waiting_.erase(correlation);
}

void Connection::write(std::string_view frame, std::string_view batch) {
  const std::lock_guard writing(write_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw *failure_;
  }
  std::string ahead;
  {
    const std::lock_guard lock(soon_mutex_);
    ahead.swap(soon_);
  }
  const std::array<std::string_view, 3> buffers{ahead, frame, batch};
  try {
    socket_.send_all(buffers, options_.request_timeout);
  } catch (const Error& error) {
    if (error.code() != "connection.lost") fail(error);
    throw_failure(error);
  }
  last_sent_ = Clock::now().time_since_epoch().count();
}

/// Throw why the connection failed: where the broker has said it, the thread that reads knows better than who sends.
void Connection::throw_failure(const Error& error) {
  std::unique_lock lock(mutex_);
  answered_.wait_for(lock, closing_time, [&] { return failure_.has_value(); });
  throw failure_ ? *failure_ : error;
}

/// Send a small frame without waiting: now, or ahead of what is written next.
void Connection::post_soon(const std::string& frame) {
  {
    const std::lock_guard lock(soon_mutex_);
    soon_ += frame;
  }
  send_soon();
}

void Connection::send_soon() {
  const std::unique_lock writing(write_mutex_, std::try_to_lock);
  if (!writing) return;
  const std::lock_guard lock(soon_mutex_);
  if (soon_.empty()) return;
  const std::array<std::string_view, 1> buffers{soon_};
  soon_.erase(0, socket_.send_some(buffers));
  last_sent_ = Clock::now().time_since_epoch().count();
}

// --- answers ---

Reply Connection::wait(PendingReply& reply, Deadline deadline) {
  if (reply.wait_until(deadline) != std::future_status::ready)
    throw Error("request.timeout", "the broker did not answer in time", true);
  Outcome outcome = reply.get();
  if (const auto* error = std::get_if<Error>(&outcome)) throw Error(*error);
  return std::get<Reply>(std::move(outcome));
}

// --- reading ---

void Connection::run() noexcept {
  try {
    take_all();  // What came together with welcome.
    for (;;) {
      if (wait_for_events()) receive();
      send_soon();
      look_at_leases();
      if (!closing_)
        keep_alive();
      else if (Clock::now().time_since_epoch().count() >= closing_until_)
        throw closed();
    }
  } catch (const Error& error) {
    fail(closing_ ? closed() : error);
  } catch (const std::exception& error) {
    fail(Error("linn.internal", error.what()));
  }
}

/// Have what was not looked at in half a lease released, and what the application has renewed.
void Connection::look_at_leases() {
  next_look_ = Clock::time_point::max();
  std::vector<std::shared_ptr<Subscription>> subscriptions;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, subscription] : subscriptions_) subscriptions.push_back(subscription);
  }
  for (const auto& subscription : subscriptions) {
    const std::vector<Settlement> entries = subscription->look(Clock::now());
    if (!entries.empty()) settle_quietly(subscription->said().subscription, entries);
    next_look_ = std::min(next_look_, subscription->next_look());
  }
}

/// Whether the socket has something to read, within the time to the next keepalive.
bool Connection::wait_for_events() {
  if (socket_.has_more()) return true;
  bool has_more = false;
  {
    const std::lock_guard lock(soon_mutex_);
    has_more = !soon_.empty();
  }
  milliseconds tick = closing_                       ? milliseconds(50)
                      : keepalive_ > milliseconds(0) ? keepalive_ / 4
                                                     : milliseconds(60'000);
  if (next_look_ != Clock::time_point::max())
    tick = std::clamp(std::chrono::ceil<milliseconds>(next_look_ - Clock::now()), milliseconds(0), tick);
  std::array<pollfd, 2> waiting{};
  waiting[0] = {socket_.descriptor(), static_cast<short>(has_more ? POLLIN | POLLOUT : POLLIN), 0};
  waiting[1] = {wake_.descriptor(), static_cast<short>(closing_ ? 0 : POLLIN), 0};
  ::poll(waiting.data(), waiting.size(), static_cast<int>(tick.count()));
  return (waiting[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
}

void Connection::receive() {
  const std::size_t count = socket_.receive(buffer_.data(), buffer_.size());
  if (count > 0) last_heard_ = Clock::now();
  frames_.feed({buffer_.data(), count});
  take_all();
}

void Connection::take_all() {
  while (auto message = frames_.next()) take(std::move(*message));
}

/// One message: a control message, or a batch that the last one announced.
void Connection::take(std::string message) {
  if (!frame_) {
    frame_ = decode_frame(message);
    if (frame_->batches > (may_have_batches(frame_->message) ? batches_max : 0))
      throw Error("protocol.malformed", "a message announces more batches than it may");
  } else {
    batch_bytes_ += message.size();
    if (batch_bytes_ > options_.receive_bytes_max)
      throw Error("protocol.frame_too_large", "the batches of one message are over the limit");
    batches_.push_back(std::move(message));
  }
  if (batches_.size() == frame_->batches) dispatch();
}

void Connection::dispatch() {
  IncomingFrame frame = std::move(*frame_);
  frame_.reset();
  std::vector<std::string> batches = std::exchange(batches_, {});
  batch_bytes_ = 0;
  if (std::holds_alternative<Ping>(frame.message))
    post_soon(encode(frame.correlation, Pong{}));
  else if (frame.correlation == 0)
    push(std::move(frame.message), std::move(batches));
  else if (!std::holds_alternative<Pong>(frame.message))
    answer(frame.correlation, {std::move(frame.message), std::move(batches)});
}

void Connection::answer(std::uint64_t correlation, Reply reply) {
  const std::lock_guard lock(mutex_);
  auto found = waiting_.extract(correlation);
  if (!found) throw Error("protocol.malformed", "the broker answered a request that was not made");
  Waiting& waiting = found.mapped();
  if (const auto* subscribed = std::get_if<Subscribed>(&reply.message); subscribed != nullptr && waiting.opens) {
    waiting.opens->opened(*subscribed);
    if (waiting.opens->abandoned())
      post_soon(encode(0, Unsubscribe{subscribed->subscription}));
    else
      subscriptions_[subscribed->subscription] = waiting.opens;
  }
  if (const auto* failed = std::get_if<Failed>(&reply.message)) {
    if (failed->code == "broker.stopping") drains_ = true;
    waiting.told(Error(failed->code, failed->text, failed->retriable), false);
  } else {
    waiting.told(std::move(reply), false);
  }
  answered_.notify_all();
}

void Connection::push(Incoming message, std::vector<std::string> batches) {
  if (const auto* failed = std::get_if<Failed>(&message)) throw Error(failed->code, failed->text, failed->retriable);
  if (const auto* deliver = std::get_if<Deliver>(&message)) {
    if (const auto subscription = subscription_of(deliver->subscription))
      subscription->arrived(*deliver, std::move(batches));
  } else if (const auto* assigned = std::get_if<Assigned>(&message)) {
    if (const auto subscription = subscription_of(assigned->subscription)) {
      subscription->assigned(*assigned);  // Hands out nothing more of what is revoked: it is let go of.
      if (!assigned->revoked.empty()) post_soon(encode(0, Heartbeat{assigned->subscription, assigned->epoch}));
    }
  } else if (const auto* lease = std::get_if<LeaseEnded>(&message)) {
    if (const auto subscription = subscription_of(lease->subscription)) subscription->lease_ended(*lease);
  } else if (const auto* ended = std::get_if<Ended>(&message)) {
    if (const auto subscription = subscription_of(ended->subscription)) {
      forget(*subscription);
      const Error reason(ended->code, ended->text);
      // The leader of a cluster was lost, or is another broker: it is as after an outage.
      if (ended->code == "peer.unreachable" || ended->code == "partition.not_leader")
        subscription->lost(reason);
      else
        subscription->ended(reason);
    }
  }
  if (std::holds_alternative<Goodbye>(message)) drains_ = true;
  // An unknown message is a newer broker's.
}

/// nullptr where it has ended: what was on its way then may still come.
std::shared_ptr<Subscription> Connection::subscription_of(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = subscriptions_.find(number);
  return found == subscriptions_.end() ? nullptr : found->second;
}

void Connection::keep_alive() {
  if (keepalive_ == milliseconds(0)) return;
  const Clock::time_point now = Clock::now();
  if (now - last_heard_ >= 3 * keepalive_) throw lost("nothing was heard of the broker");
  const bool silent = now - Clock::time_point(Clock::duration(last_sent_)) >= keepalive_ / 2;
  const bool deaf = now - last_heard_ >= keepalive_;
  if ((!silent && !deaf) || now - last_pinged_ < keepalive_ / 2) return;
  last_pinged_ = now;
  post_soon(encode(next_correlation(), Ping{}));
}

std::uint64_t Connection::next_correlation() {
  const std::lock_guard lock(mutex_);
  return ++last_correlation_;
}

/// Everything that waits is told, once; subscriptions first, so that who hears of it is handed out nothing more.
void Connection::fail(const Error& error) noexcept {
  socket_.shut_down();
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = error;
  for (const auto& [number, subscription] : subscriptions_) subscription->lost(*failure_);
  subscriptions_.clear();
  for (auto& [correlation, waiting] : waiting_) waiting.told(*failure_, true);
  waiting_.clear();
  answered_.notify_all();
  alarm_->ring();
}

}  // namespace linn::detail
