#include "session.h"

#include <algorithm>

#include "backoff.h"
#include "outbox.h"

namespace linn::detail {
namespace {

using std::chrono::milliseconds;

/// The longest interval of signs of life where there is another broker to go to: one that is frozen is lost after three
/// of these, before a publish fails.
constexpr milliseconds keepalive_beside_others{1'000};
/// The longest time for which a producer waits for the leader: then it begins at the broker at hand.
constexpr milliseconds leader_wait_max{1'000};

Error closed() { return {"client.closed", "the client was closed"}; }

bool is_usable(const std::shared_ptr<Connection>& connection) {
  return connection && !connection->failure() && !connection->drains();
}

}  // namespace

// --- life ---

Session::Session(std::string_view url, ClientOptions options)
    : url_(url), urls_(urls_of(url)), options_(std::move(options)), outage_(std::make_shared<Outage>(url, options_.log)) {}

std::shared_ptr<Session> Session::open(std::string_view url, ClientOptions options) {
  const std::shared_ptr<Session> session(new Session(url, std::move(options)));
  session->connection_ = session->open_any(
      [&](const std::string& one) {
        return Connection::open(one, session->options_, session->alarm_, {}, session->keepalive_max());
      });
  session->broker_ = session->connection_->broker();
  session->producer_ids_ = std::make_shared<ProducerIds>(
      ProducerClaim{session->broker_.producer_id, session->broker_.producer_key});
  session->leaders_->at_hand(session->broker_.node, Clock::now());
  for (const auto work : {&Session::keep_connected, &Session::go_to_leaders, &Session::keep_sending})
    session->threads_.emplace_back([raw = session.get(), work] { (raw->*work)(); });
  return session;
}

Session::~Session() { end(); }

void Session::close() noexcept {
  for (const auto& last : refuse_requests()) last->wait_for_answers();
  end();
}

/// From now on; the connections that there were.
std::vector<std::shared_ptr<Connection>> Session::refuse_requests() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  std::vector<std::shared_ptr<Connection>> last;
  if (connection_) last.push_back(connection_);
  for (const auto& [node, connection] : leading_) last.push_back(connection);
  return last;
}

/// Fail what waits, and stop the threads.
void Session::end() noexcept {
  const std::lock_guard ending(end_mutex_);
  for (const auto& last : refuse_requests()) last->end();
  alarm_->ring();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (const auto& outbox : outboxes()) outbox->close(closed());
}

// --- for those who use the connection ---

std::string Session::user() const {
  const std::lock_guard lock(mutex_);
  return connection_->user();
}

/// The connection, if it takes requests. Under `mutex_`.
std::shared_ptr<Connection> Session::usable() const {
  return is_usable(connection_) ? connection_ : nullptr;
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

std::shared_ptr<Connection> Session::connection_for(const std::string& topic) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = leading_.find(leaders_->leader_of(topic));
    if (found != leading_.end() && is_usable(found->second)) return found->second;
  }
  return connection();
}

void Session::wait_for_leader_of(const std::string& topic) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, leader_wait_max,
                    [&] { return closed_ || !usable() || leaders_->is_settled(topic, Clock::now()); });
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
    const Error reason = wait_until_lost(*connection);
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

/// Why it is lost.
Error Session::wait_until_lost(const Connection& connection) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || connection.failure(); });
  return connection.failure().value_or(closed());
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
    leaders_->at_hand(connection->broker().node, Clock::now());
    changed_.notify_all();
  }
  alarm_->ring();
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
    return Connection::open(url, options_, alarm_, producer_ids_->claim(), keepalive_max());
  } catch (const Error& error) {
    if (error.code() != "producer.foreign") throw;
  }
  auto connection = Connection::open(url, options_, alarm_, {}, keepalive_max());
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

milliseconds Session::keepalive_max() const noexcept {
  return urls_.size() > 1 ? keepalive_beside_others : milliseconds::max();
}

// --- by the thread that goes to leaders ---

void Session::go_to_leaders() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    const Clock::time_point now = Clock::now();
    auto lost = take_lost();
    const auto at_hand = usable();
    const auto topics = at_hand ? leaders_->to_describe(now) : std::vector<std::string>();
    const auto target = at_hand ? leaders_->to_reach(now) : std::nullopt;
    if (lost.empty() && topics.empty() && !target) {
      changed_.wait_until(lock, at_hand ? leaders_->next_time() : Deadline::max());
      continue;
    }
    lock.unlock();
    lost.clear();
    if (!topics.empty()) describe(*at_hand, topics);
    if (target) reach(*target, at_hand->broker());
    lock.lock();
  }
}

/// The connections to leaders that are lost, which nobody uses from now on. Under `mutex_`.
std::vector<std::shared_ptr<Connection>> Session::take_lost() {
  std::vector<std::shared_ptr<Connection>> lost;
  std::erase_if(leading_, [&](const auto& known) {
    if (!known.second->failure()) return false;
    leaders_->lost(known.first, Clock::now());
    lost.push_back(known.second);
    return true;
  });
  return lost;
}

/// Ask who leads topics. A failure is ignored: they are published to through the broker at hand.
void Session::describe(Connection& connection, const std::vector<std::string>& topics) const {
  const auto told = [leaders = leaders_, alarm = alarm_](const Outcome& outcome, bool) {
    const auto* reply = std::get_if<Reply>(&outcome);
    const auto* description = reply != nullptr ? std::get_if<Description>(&reply->message) : nullptr;
    if (description == nullptr) return;
    leaders->told(*description, Clock::now());
    alarm->ring();
  };
  try {
    connection.ask(Describe{topics}, told);
  } catch (const Error&) {
    // They are asked for again on the next connection.
  }
}

/// Connect to the broker that leads a topic, and have it used, unless another one answers there.
void Session::reach(const Leaders::Target& target, const BrokerInfo& at_hand) {
  try {
    const std::string url = url_of(target.address, parse_url(urls_.front()).is_tls);
    auto connection = Connection::open(url, options_, alarm_, producer_ids_->claim(), keepalive_beside_others);
    const BrokerInfo& found = connection->broker();
    if (found.cluster != at_hand.cluster || found.node != target.node)
      throw Error("connection.failed", "another broker answers at " + target.address, true);
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    leading_[target.node] = std::move(connection);
    leaders_->reached(target.node);
  } catch (const Error& error) {
    if (leaders_->failed(target.node, Clock::now()))
      outage_->tell("broker " + std::to_string(target.node) + " can't be reached, its topics are published to through " +
                    at_hand.name + ": " + error.text());
  }
  alarm_->ring();
}

// --- by the thread that sends ---

void Session::keep_sending() {
  for (;;) {
    alarm_->wait();
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      changed_.notify_all();
    }
    for (const auto& outbox : outboxes()) outbox->send_all(*this);
  }
}

}  // namespace linn::detail
