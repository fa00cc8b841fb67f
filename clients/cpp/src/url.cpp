#include "url.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include <linn/error.h>

namespace linn::detail {
namespace {

constexpr std::string_view tcp_scheme = "linn://", tls_scheme = "linns://", unix_scheme = "linn+unix://";
constexpr std::string_view default_port = "5466";  // L-I-N-N on a telephone.

[[noreturn]] void invalid(std::string_view url) {
  throw Error("listener.address_invalid",
              "\"" + std::string(url) + "\" is not linn://HOST[:PORT], linns://HOST[:PORT] or linn+unix:///PATH");
}

std::string unquoted(std::string_view path, std::string_view url) {
  std::string text;
  for (std::size_t place = 0; place < path.size(); ++place) {
    if (path[place] != '%') {
      text += path[place];
      continue;
    }
    std::uint8_t byte = 0;
    const std::string_view digits = path.substr(place + 1, 2);
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() < 2 || problem != std::errc() || end != digits.data() + 2 || byte == 0) invalid(url);
    text += static_cast<char>(byte);
    place += 2;
  }
  return text;
}

std::string checked_port(std::string_view port, std::string_view url) {
  std::uint16_t number = 0;
  const auto [end, problem] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (port.empty() || problem != std::errc() || end != port.data() + port.size() || number == 0) invalid(url);
  return std::string(port);
}

}  // namespace

Address parse_url(std::string_view url) {
  if (url.find('@') != std::string_view::npos && !url.starts_with("linn+unix:///"))
    throw Error("listener.address_invalid", "a URL of linn has no user and no password: leave out all up to the '@'");
  if (url.find('\0') != std::string_view::npos) invalid(url);
  if (url.starts_with(unix_scheme)) {
    const std::string_view path = url.substr(unix_scheme.size());
    if (path.size() < 2 || path.front() != '/') invalid(url);
    return {unquoted(path, url), {}, {}, false};
  }
  const bool is_tls = url.starts_with(tls_scheme);
  if (!is_tls && !url.starts_with(tcp_scheme)) invalid(url);
  std::string_view rest = url.substr((is_tls ? tls_scheme : tcp_scheme).size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const bool bracketed = rest.starts_with('[');
  const std::size_t host_end = bracketed ? rest.find(']') : rest.find(':');
  std::string_view host = rest.substr(0, host_end);
  std::string_view behind = host_end == std::string_view::npos ? std::string_view() : rest.substr(host_end);
  if (bracketed) {
    if (behind.empty()) invalid(url);
    host.remove_prefix(1);
    behind.remove_prefix(1);
  }
  if (host.empty() || host.find_first_of("/?#@[], ") != std::string_view::npos) invalid(url);
  if (behind.empty()) return {{}, std::string(host), std::string(default_port), is_tls};
  if (behind.front() != ':') invalid(url);
  return {{}, std::string(host), checked_port(behind.substr(1), url), is_tls};
}

std::string url_of(std::string_view address, bool is_tls) {
  constexpr std::string_view unix_prefix = "unix:";
  if (!address.starts_with(unix_prefix)) return std::string(is_tls ? tls_scheme : tcp_scheme).append(address);
  std::string url(unix_scheme);
  for (const char each : address.substr(unix_prefix.size())) url += each == '%' ? "%25" : std::string(1, each);
  return url;
}

std::vector<std::string> urls_of(std::string_view url) {
  const std::size_t scheme_end = url.find("://");
  if (url.find(',') == std::string_view::npos || scheme_end == std::string_view::npos || url.starts_with(unix_scheme)) {
    parse_url(url);
    return {std::string(url)};
  }
  if (url.find('@') != std::string_view::npos) parse_url(url);  // Throws, and repeats no password.
  const std::string scheme(url.substr(0, scheme_end + 3));
  std::vector<std::string> urls;
  for (std::size_t begin = scheme.size(); begin <= url.size();) {
    const std::size_t end = std::min(url.find(',', begin), url.size());
    urls.push_back(scheme + std::string(url.substr(begin, end - begin)));
    parse_url(urls.back());
    begin = end + 1;
  }
  if (urls.size() > addresses_max)
    throw Error("listener.address_invalid", "a URL has at most " + std::to_string(addresses_max) + " addresses");
  return urls;
}

}  // namespace linn::detail
