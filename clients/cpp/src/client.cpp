#include <linn/client.h>

#include <utility>

#include "bytes.h"
#include "connection.h"
#include "messages.h"

namespace linn {

using detail::Connection;

Client::Client(std::shared_ptr<Connection> connection) noexcept : connection_(std::move(connection)) {}

Client Client::connect(std::string_view url, ClientOptions options) {
  return Client(Connection::open(url, std::move(options)));
}

const BrokerInfo& Client::broker() const noexcept { return connection_->broker(); }

Producer Client::producer(ProducerOptions options) const { return {connection_, std::move(options)}; }

Fetched Client::fetch(const FetchRequest& request) const {
  auto reply = connection_->request(request);
  auto [head, messages] = Connection::expect<detail::FetchedHead>(connection_->wait(reply, request.wait));
  Fetched fetched{{}, head.start_offset, head.high_watermark};
  std::int64_t next = request.offset;
  for (std::string& message : messages) {
    fetched.batches.push_back(Batch::decode(std::move(message), connection_->options().receive_bytes_max));
    const Batch& batch = fetched.batches.back();
    if (!batch.stamped() || batch.first_offset() != next)
      throw Error("protocol.malformed", "the fetched batches do not begin at the offset, or have a gap");
    next = batch.end_offset();
  }
  return fetched;
}

std::int64_t Client::find_offset(std::string_view topic, std::int32_t partition, std::int64_t timestamp_ms) const {
  auto reply = connection_->request(detail::FindOffset{std::string(topic), partition, timestamp_ms});
  return connection_->wait_for<detail::FoundOffset>(reply).offset;
}

std::vector<TopicInfo> Client::describe(const std::vector<std::string>& topics) const {
  auto reply = connection_->request(detail::Describe{topics});
  return connection_->wait_for<detail::Description>(reply).topics;
}

std::string Client::administer(std::string_view verb, std::string_view arguments) const {
  auto reply = connection_->request(detail::Administer{std::string(verb), std::string(arguments)});
  return connection_->wait_for<detail::Administered>(reply).result;
}

void Client::close() const noexcept { connection_->close(); }

}  // namespace linn
