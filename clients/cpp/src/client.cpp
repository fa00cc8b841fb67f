#include <linn/client.h>

#include <utility>

#include "bytes.h"
#include "messages.h"
#include "session.h"

namespace linn {

using detail::Session;

Client::Client(std::shared_ptr<Session> session) noexcept : session_(std::move(session)) {}

Client Client::connect(std::string_view url, ClientOptions options) {
  return Client(Session::open(url, std::move(options)));
}

const BrokerInfo& Client::broker() const noexcept { return session_->broker(); }

std::string Client::user() const { return session_->user(); }

Producer Client::producer(ProducerOptions options) const { return {session_, std::move(options)}; }

Fetched Client::fetch(const FetchRequest& request) const {
  auto [head, messages] = session_->request<detail::FetchedHead>(request, true, request.wait);
  Fetched fetched{{}, head.start_offset, head.high_watermark, head.next_offset};
  std::int64_t next = request.offset;
  for (std::string& message : messages) {
    fetched.batches.push_back(Batch::decode(std::move(message), session_->options().receive_bytes_max));
    const Batch& batch = fetched.batches.back();
    if (!batch.stamped() || batch.first_offset() < next)
      throw Error("protocol.malformed", "the fetched batches begin before the offset, or overlap");
    next = batch.end_offset();
  }
  return fetched;
}

std::int64_t Client::find_offset(std::string_view topic, std::int32_t partition, std::int64_t timestamp_ms) const {
  const detail::FindOffset request{std::string(topic), partition, timestamp_ms};
  return session_->request<detail::FoundOffset>(request).first.offset;
}

std::int64_t Client::find_offset(std::string_view topic, std::int32_t partition, Place place) const {
  const detail::FindOffset request{std::string(topic), partition, 0, static_cast<std::uint16_t>(place)};
  return session_->request<detail::FoundOffset>(request).first.offset;
}

std::vector<TopicInfo> Client::describe(const std::vector<std::string>& topics) const {
  return session_->request<detail::Description>(detail::Describe{topics}).first.topics;
}

std::string Client::administer(std::string_view verb, std::string_view arguments) const {
  const detail::Administer request{std::string(verb), std::string(arguments)};
  return session_->request<detail::Administered>(request, false).first.result;
}

void Client::close() const noexcept { session_->close(); }

}  // namespace linn
