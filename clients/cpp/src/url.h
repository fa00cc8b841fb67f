// A broker's URL: linn://HOST[:PORT], linn://[V6][:PORT], the same with linns:// for TLS, or linn+unix:///PATH.
// Several brokers of a cluster are separated by commas: linn://HOST[:PORT],HOST[:PORT].
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace linn::detail {

struct Address {
  /// Of a Unix socket; empty for TCP.
  std::string path;
  std::string host;
  std::string port;
  bool is_tls = false;
};

/// The most addresses in one URL: an attempt to connect tries all of them, one after another.
inline constexpr std::size_t addresses_max = 32;

/// Of a URL with one address. Throws Error listener.address_invalid.
Address parse_url(std::string_view url);

/// The URL of an address that a broker tells: HOST:PORT, or unix:PATH, which is never TLS.
std::string url_of(std::string_view address, bool is_tls);

/// A URL for each address of one, in its order. Throws Error listener.address_invalid.
std::vector<std::string> urls_of(std::string_view url);

}  // namespace linn::detail
