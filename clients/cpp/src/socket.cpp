#include "socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <linn/error.h>

namespace linn::detail {
namespace {

constexpr std::size_t buffers_max = 64;  // Of one system call.

std::string system_text() { return std::strerror(errno); }

[[noreturn]] void failed(const std::string& text) { throw Error("connection.failed", text, true); }
[[noreturn]] void lost(const std::string& text) { throw Error("connection.lost", text, true); }

/// What poll() takes: milliseconds rounded up, -1 for never.
int poll_timeout(Deadline deadline) noexcept {
  if (deadline == Deadline::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 60'000));
}

/// Whether `events` came within the time.
bool wait_for(int descriptor, short events, Deadline deadline) {
  for (;;) {
    pollfd waiting{descriptor, events, 0};
    const int count = ::poll(&waiting, 1, poll_timeout(deadline));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) lost("poll: " + system_text());
    if (count == 0 && Clock::now() >= deadline) return false;
  }
}

Socket new_socket(int family) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.descriptor() < 0) failed("no socket: " + system_text());
  return socket;
}

/// Empty text, or why it failed.
std::string connect_to(const Socket& socket, const sockaddr* address, socklen_t size, Deadline deadline) {
  if (::connect(socket.descriptor(), address, size) == 0) return {};
  if (errno != EINPROGRESS && errno != EINTR) return system_text();
  if (!wait_for(socket.descriptor(), POLLOUT, deadline)) return "no answer in time";
  int problem = 0;
  socklen_t problem_size = sizeof problem;
  ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &problem, &problem_size);
  return problem == 0 ? std::string() : std::string(std::strerror(problem));
}

Socket connect_unix(const std::string& path, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) failed("the path of a Unix socket is too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Socket socket = new_socket(AF_UNIX);
  const std::string problem = connect_to(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address, deadline);
  if (!problem.empty()) failed(path + ": " + problem);
  return socket;
}

Socket connect_tcp(const Address& to, Deadline deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int problem = ::getaddrinfo(to.host.c_str(), to.port.c_str(), &hints, &found);
  if (problem != 0) failed(to.host + ": " + ::gai_strerror(problem));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::string text;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    Socket socket = new_socket(each->ai_family);
    text = connect_to(socket, each->ai_addr, each->ai_addrlen, deadline);
    if (!text.empty()) continue;
    const int yes = 1;
    ::setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return socket;
  }
  failed(to.host + ":" + to.port + ": " + text);
}

}  // namespace

Deadline deadline_in(std::chrono::milliseconds timeout) noexcept {
  const Deadline now = Clock::now();
  return timeout >= std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::max() - now) ? Deadline::max()
                                                                                                 : now + timeout;
}

Socket::Socket(Socket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), tls_(std::move(other.tls_)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(tls_, other.tls_);
  return *this;
}

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Socket Socket::connect(const Address& address, Deadline deadline, const std::optional<TlsOptions>& tls) {
  if (tls && !address.is_tls)
    throw Error("listener.address_invalid", "the URL is without TLS, and there are options for it: use linns://");
  Socket socket = address.path.empty() ? connect_tcp(address, deadline) : connect_unix(address.path, deadline);
  if (address.is_tls)
    socket.tls_ = Tls::open(socket.descriptor_, address.host, tls.value_or(TlsOptions()), deadline, wait_for);
  return socket;
}

bool Socket::wait_readable(Deadline deadline) const {
  return has_more() || wait_for(descriptor_, POLLIN, deadline);
}

std::size_t Socket::receive(char* buffer, std::size_t size) const {
  if (tls_) return tls_->receive(buffer, size);
  const ssize_t count = ::recv(descriptor_, buffer, size, 0);
  if (count > 0) return static_cast<std::size_t>(count);
  if (count == 0) lost("the broker closed the connection");
  if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) lost("the connection was lost: " + system_text());
  return 0;
}

std::size_t Socket::send_some(std::span<const std::string_view> buffers) const {
  if (tls_) return tls_->send_some(buffers);
  std::array<iovec, buffers_max> parts{};
  const std::size_t count = std::min(buffers.size(), parts.size());
  for (std::size_t index = 0; index < count; ++index)
    parts[index] = {const_cast<char*>(buffers[index].data()), buffers[index].size()};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t sent = ::sendmsg(descriptor_, &message, MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) lost("the connection was lost: " + system_text());
  return 0;
}

void Socket::send_all(std::span<const std::string_view> buffers, std::chrono::milliseconds progress_timeout) const {
  std::vector<std::string_view> left(buffers.begin(), buffers.end());
  std::size_t first = 0;
  while (first < left.size()) {
    std::size_t sent = send_some(std::span(left).subspan(first));
    if (sent == 0 && !wait_for(descriptor_, POLLOUT, deadline_in(progress_timeout)))
      throw Error("request.timeout", "the broker does not read", true);
    while (first < left.size() && sent >= left[first].size()) sent -= left[first++].size();
    if (first < left.size()) left[first].remove_prefix(sent);
  }
}

void Socket::end_sending() const noexcept {
  if (tls_) tls_->end_sending();
  ::shutdown(descriptor_, SHUT_WR);
}
void Socket::shut_down() const noexcept { ::shutdown(descriptor_, SHUT_RDWR); }

}  // namespace linn::detail
