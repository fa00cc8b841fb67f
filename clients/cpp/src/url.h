// A broker's URL: linn://HOST[:PORT], linn://[V6][:PORT], the same with linns:// for TLS, or linn+unix:///PATH.
#pragma once

#include <string>
#include <string_view>

namespace linn::detail {

struct Address {
  /// Of a Unix socket; empty for TCP.
  std::string path;
  std::string host;
  std::string port;
  bool is_tls = false;
};

/// Throws Error listener.address_invalid.
Address parse_url(std::string_view url);

}  // namespace linn::detail
