// URLs of a broker.
#include "check.h"
#include "url.h"

using linn::detail::parse_url;
using linn::detail::url_of;
using linn::detail::urls_of;

namespace {

void tcp_has_a_host_and_a_port() {
  CHECK(parse_url("linn://localhost").host == "localhost" && parse_url("linn://localhost").port == "5466");
  CHECK(parse_url("linn://127.0.0.1:99/").host == "127.0.0.1" && parse_url("linn://127.0.0.1:99/").port == "99");
  CHECK(parse_url("linn://[::1]").host == "::1" && parse_url("linn://[::1]").port == "5466");
  CHECK(parse_url("linn://[::1]:7").port == "7");
}

void tls_is_a_scheme_of_its_own() {
  CHECK(parse_url("linns://h:7").is_tls && parse_url("linns://h:7").host == "h" && parse_url("linns://h:7").port == "7");
  CHECK(parse_url("linns://[::1]").is_tls && !parse_url("linn://[::1]").is_tls);
}

void unix_has_a_path_with_its_quotes_undone() {
  CHECK(parse_url("linn+unix:///run/linn.sock").path == "/run/linn.sock");
  CHECK(parse_url("linn+unix:///a%20b").path == "/a b");
}

void several_addresses_are_several_urls() {
  CHECK(urls_of("linn://a,b:5467,[::1]") == (std::vector<std::string>{"linn://a", "linn://b:5467", "linn://[::1]"}));
  CHECK(urls_of("linns://a,b/") == (std::vector<std::string>{"linns://a", "linns://b/"}));
  CHECK(urls_of("linn+unix:///a,b") == std::vector<std::string>{"linn+unix:///a,b"});
  for (const char* url : {"linn://a,", "linn://,a", "linn://a,,b", "linn://a,linn://b", "linn://a/x,b", "linn://a,b:0",
                          "a,b", "linn://a,u@b"})
    CHECK(code_of([&] { urls_of(url); }) == "listener.address_invalid");
  std::string many = "linn://h";
  for (std::size_t count = 1; count < linn::detail::addresses_max; ++count) many += ",h";
  CHECK(urls_of(many).size() == linn::detail::addresses_max);
  CHECK(code_of([&] { urls_of(many + ",h"); }) == "listener.address_invalid");
}

void an_address_that_a_broker_tells_is_a_url() {
  CHECK(url_of("127.0.0.1:99", false) == "linn://127.0.0.1:99" && url_of("[::1]:99", true) == "linns://[::1]:99");
  CHECK(parse_url(url_of("unix:/a b%20c", true)).path == "/a b%20c");
}

void anything_else_is_refused() {
  for (const char* url :
       {"", "http://x", "linn:", "linn://", "linn://:5466", "linn://h:", "linn://h:0", "linn://h:65536", "linn://h:x",
        "linn://h/topic", "linn://u@h", "linn://h?x", "linn://h,i", "linns://", "linnss://h", "linn://[::1", "linn://[::1]x", "linn+unix://x", "linn+unix:///",
        "linn+unix:///a%2", "linn+unix:///a%zz", "linn+unix:///a%00"})
    CHECK(code_of([&] { parse_url(url); }) == "listener.address_invalid");
}

void no_error_repeats_a_password() {
  for (const char* url : {"linn://user:secret@h", "linn://user:se/cret@h:1", "user:secret@h", "http://user:secret@h",
                          "linn+unix://user:secret@/x"}) {
    std::string text;
    try {
      parse_url(url);
    } catch (const linn::Error& error) {
      text = error.what();
    }
    CHECK(!text.empty() && text.find("cret") == std::string::npos && text.find("user:") == std::string::npos);
  }
  CHECK(parse_url("linn+unix:///run/a@b.sock").path == "/run/a@b.sock");
}

}  // namespace

int main() {
  return run({{"TCP has a host and a port", tcp_has_a_host_and_a_port},
              {"TLS is a scheme of its own", tls_is_a_scheme_of_its_own},
              {"a Unix socket has a path, its quotes undone", unix_has_a_path_with_its_quotes_undone},
              {"several addresses are several URLs", several_addresses_are_several_urls},
              {"an address that a broker tells is a URL", an_address_that_a_broker_tells_is_a_url},
              {"anything else is refused", anything_else_is_refused},
              {"no error repeats a password", no_error_repeats_a_password}});
}
