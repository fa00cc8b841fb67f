#include "session.h"

#include <algorithm>

#include "backoff.h"
#include "outbox.h"

namespace linn::detail {
namespace {

using std::chrono::milliseconds;

Error closed() { return {"client.closed", "the client was closed"}; }

}  // namespace

// --- life ---

Session::Session(std::string_view url, ClientOptions options)
    : url_(url), urls_(urls_of(url)), options_(std::move(options)), outage_(std::make_shared<Outage>(url, options_.log)) {}

std::shared_ptr<Session> Session::open(std::string_view url, ClientOptions options) {
  const std::shared_ptr<Session> session(new Session(url, std::move(options)));
  session->connection_ = session->open_any(
      [&](const std::string& one) { return Connection::open(one, session->options_, session->alarm_); });
  session->broker_ = session->connection_->broker();
  session->producer_ids_ = std::make_shared<ProducerIds>(
      ProducerClaim{session->broker_.producer_id, session->broker_.producer_key});
  session->connecting_ = std::thread([raw = session.get()] { raw->keep_connected(); });
  return session;
}

Session::~Session() { end(); }

void Session::close() noexcept {
  if (const auto last = refuse_requests()) last->wait_for_answers();
  end();
}

/// From now on; the connection that there was.
std::shared_ptr<Connection> Session::refuse_requests() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  return connection_;
}

/// Fail what waits, and stop the threads.
void Session::end() noexcept {
  const std::lock_guard ending(end_mutex_);
  if (const auto last = refuse_requests()) last->end();
  if (connecting_.joinable()) connecting_.join();
  for (const auto& outbox : outboxes()) outbox->close(closed());
}

// --- for those who use the connection ---

std::string Session::user() const {
  const std::lock_guard lock(mutex_);
  return connection_->user();
}

/// The connection, if it takes requests. Under `mutex_`.
std::shared_ptr<Connection> Session::usable() const {
  return connection_ && !connection_->failure() && !connection_->drains() ? connection_ : nullptr;
}

std::shared_ptr<Connection> Session::wait_for_connection(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (std::exchange(rests_, false)) changed_.notify_all();
  std::shared_ptr<Connection> found;  // It may be lost at any time, and is looked at once.
  const auto is_decided = [&, count = gave_up_count_] {
    found = usable();
    return closed_ || found || gave_up_count_ != count;
  };
  if (!changed_.wait_until(lock, deadline, is_decided)) return nullptr;
  if (closed_) throw closed();
  if (found) return found;
  throw Error(*gave_up_);
}

std::shared_ptr<Connection> Session::connection() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(rests_, false)) changed_.notify_all();
  return usable();
}

void Session::add(const std::shared_ptr<Outbox>& outbox) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(outboxes_, [](const auto& known) { return known.expired(); });
    outboxes_.push_back(outbox);
    if (!closed_) return;
  }
  outbox->close(closed());
}

std::vector<std::shared_ptr<Outbox>> Session::outboxes() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Outbox>> found;
  for (const auto& known : outboxes_)
    if (auto outbox = known.lock()) found.push_back(std::move(outbox));
  return found;
}

Error Session::no_connection_in_time() const {
  return {"request.timeout", "no connection to " + url_ + " in time: " + outage_->text(), true};
}

bool Session::is_used_up(std::uint64_t attempts) const noexcept {
  return options_.retries_max && attempts > *options_.retries_max;
}

milliseconds Session::backoff_after(std::uint64_t attempts) {
  const std::lock_guard lock(mutex_);
  return detail::backoff_after(attempts, options_, random_);
}

void Session::sleep_until(Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return closed_; });
}

bool Session::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

// --- by the thread that connects ---

void Session::keep_connected() {
  std::uint64_t ended_early = 0;
  auto connection = connection_;  // Nobody else replaces it.
  while (connection) {
    const Clock::time_point began = Clock::now();
    const Error reason = send_until_lost(connection);
    connection.reset();
    if (is_closed()) return;
    const Clock::time_point now = Clock::now();
    outage_->begins(reason, now);
    at_ = (at_ + 1) % urls_.size();
    // A connection that ends as soon as it is made is no better than one that fails: back off all the same.
    ended_early = now - began < options_.backoff_max ? ended_early + 1 : 0;
    if (ended_early > 1) sleep_until(now + backoff_after(ended_early - 2));
    connection = connect_again();
  }
}

/// Why it is lost. Meanwhile batches are sent again when the alarm rings.
Error Session::send_until_lost(const std::shared_ptr<Connection>& connection) {
  for (;;) {
    alarm_->wait();
    if (const auto reason = connection->failure()) return *reason;
    for (const auto& outbox : outboxes()) outbox->send_all(connection);
  }
}

/// Another connection, which everybody knows of; nullptr where the client was closed.
std::shared_ptr<Connection> Session::connect_again() {
  auto connection = try_to_connect();
  while (!connection) {
    if (!give_up()) return nullptr;
    connection = try_to_connect();
  }
  outage_->ends(Clock::now());
  auto before = connection;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return nullptr;
    before.swap(connection_);
    changed_.notify_all();
  }
  for (const auto& outbox : outboxes()) outbox->send_all(connection);
  return connection;
}

/// To the first address that answers, beginning with the present one. Throws Error: of the last address, or one that no
/// other attempt can mend.
std::shared_ptr<Connection> Session::open_any(
    const std::function<std::shared_ptr<Connection>(const std::string&)>& open) {
  std::optional<Error> reason;
  for (std::size_t tried = 0; tried < urls_.size() && !is_closed(); ++tried) {
    try {
      return open(urls_[at_]);
    } catch (const Error& error) {
      if (!reason || reason->retriable()) reason = error;
    }
    at_ = (at_ + 1) % urls_.size();
  }
  throw reason ? *reason : closed();
}

/// A connection over which the client goes on with its producer ids, or with new ones if the broker does not know
/// them: its data was replaced. Throws Error.
std::shared_ptr<Connection> Session::open_with_ids(const std::string& url) {
  try {
    return Connection::open(url, options_, alarm_, producer_ids_->claim());
  } catch (const Error& error) {
    if (error.code() != "producer.foreign") throw;
  }
  auto connection = Connection::open(url, options_, alarm_);
  producer_ids_->replace({connection->broker().producer_id, connection->broker().producer_key});
  return connection;
}

/// nullptr where no attempt is left or makes sense, or the client was closed.
std::shared_ptr<Connection> Session::try_to_connect() {
  for (std::uint64_t attempts = 0; !is_used_up(attempts + 1); ++attempts) {
    if (attempts > 0) sleep_until(Clock::now() + backoff_after(attempts - 1));
    if (is_closed()) return nullptr;
    try {
      return open_any([&](const std::string& url) { return open_with_ids(url); });
    } catch (const Error& error) {
      outage_->goes_on(error, Clock::now());
      if (!error.retriable()) return nullptr;
    }
  }
  return nullptr;
}

/// Fail what waits, and wait until somebody wants a connection; false where the client was closed.
bool Session::give_up() {
  const Error reason = outage_->reason().value_or(closed());
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    gave_up_ = reason;
    ++gave_up_count_;
    rests_ = true;
    changed_.notify_all();
  }
  for (const auto& outbox : outboxes()) outbox->fail_waiting(reason);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || !rests_; });
  return !closed_;
}

}  // namespace linn::detail
