// TLS of one connection, by OpenSSL; a build without it refuses linns:// URLs.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <linn/client.h>

namespace linn::detail {

/// Waits until a descriptor can be read, or written; false where the time is over.
using WaitFor = bool (*)(int descriptor, short events, std::chrono::steady_clock::time_point deadline);

class Tls {
 public:
  /// Shake hands over a connected, non-blocking socket, which stays the caller's.
  ///
  /// Throws Error tls.failed: a certificate is not accepted, or there is no TLS; connection.lost, connection.failed,
  /// message.invalid (a file can't be used).
  static std::unique_ptr<Tls> open(int descriptor, const std::string& host, const TlsOptions& options,
                                   std::chrono::steady_clock::time_point deadline, WaitFor wait_for);
  virtual ~Tls() = default;

  /// As those of Socket. Any thread may send while another receives.
  virtual std::size_t receive(char* buffer, std::size_t size) = 0;
  virtual std::size_t send_some(std::span<const std::string_view> buffers) = 0;
  /// Whether bytes may be received without a wait.
  virtual bool has_more() = 0;
  /// The hash of the broker's certificate that logins are bound to (`tls-server-end-point`, RFC 5929, 4.1); empty where
  /// its signature has no hash, as Ed25519.
  virtual std::string server_end_point() const = 0;
  /// Tell the broker that no more is sent. Never throws.
  virtual void end_sending() noexcept = 0;
};

}  // namespace linn::detail
