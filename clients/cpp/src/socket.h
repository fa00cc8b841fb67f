// Socket: a connected, non-blocking stream socket that closes itself.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tls.h"
#include "url.h"

namespace linn::detail {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// `timeout` from now; milliseconds::max() is never.
Deadline deadline_in(std::chrono::milliseconds timeout) noexcept;

class Socket {
 public:
  Socket() noexcept = default;
  explicit Socket(int descriptor) noexcept : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  /// Throws Error connection.failed: nobody is there, or not in time; and what Tls::open throws.
  static Socket connect(const Address& address, Deadline deadline, const std::optional<TlsOptions>& tls = {});

  int descriptor() const noexcept { return descriptor_; }

  /// Whether bytes can be read within the time.
  bool wait_readable(Deadline deadline) const;
  /// Whether bytes may be received although the descriptor has none: those that were decrypted already.
  bool has_more() const { return tls_ && tls_->has_more(); }

  /// As that of Tls; empty without TLS.
  std::string server_end_point() const { return tls_ ? tls_->server_end_point() : std::string(); }

  /// Bytes that were received; 0 where none are there now. Throws Error connection.lost, at the end of the stream too.
  std::size_t receive(char* buffer, std::size_t size) const;

  /// Send some of the buffers' bytes, without waiting; 0 where there is no room now. Throws Error connection.lost.
  std::size_t send_some(std::span<const std::string_view> buffers) const;

  /// Send all, waiting for room; `progress_timeout` is for each time that nothing moves.
  ///
  /// Throws Error connection.lost, request.timeout; part of it may have been sent then.
  void send_all(std::span<const std::string_view> buffers, std::chrono::milliseconds progress_timeout) const;

  /// No more is sent; the peer sees the end. Never throws.
  void end_sending() const noexcept;
  /// Neither side can send; wakes who waits for this socket. Never throws.
  void shut_down() const noexcept;

 private:
  int descriptor_ = -1;
  std::unique_ptr<Tls> tls_;
};

}  // namespace linn::detail
