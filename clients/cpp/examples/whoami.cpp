// Log in, and print who this client is to the broker.
//
//     LINN_USER=ann LINN_PASSWORD_FILE=password.txt ./linn-whoami linns://broker.example [CA]
//     LINN_TOKEN_FILE=/run/linn.token ./linn-whoami linns://broker.example [CA]
//
// Without a login, the connection itself has to say it: ./linn-whoami linn+unix:///run/linn/linn.sock

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>

#include <linn/linn.h>

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) throw linn::Error("message.invalid", "can't read " + path);
  return line;
}

std::optional<linn::Login> login() {
  const char* user = std::getenv("LINN_USER");
  const char* password_file = std::getenv("LINN_PASSWORD_FILE");
  const char* token_file = std::getenv("LINN_TOKEN_FILE");
  if (user != nullptr && password_file != nullptr) return linn::Password(user, first_line(password_file));
  // Read at each connection: the token may have been renewed.
  if (token_file != nullptr) return linn::Token([path = std::string(token_file)] { return first_line(path); });
  return std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    linn::ClientOptions options{.login = login()};
    if (argc > 2) options.tls = linn::TlsOptions{.ca = argv[2]};
    const linn::Client client = linn::Client::connect(argc > 1 ? argv[1] : "linn://127.0.0.1:5466", options);
    std::cout << client.user() << "\n" << client.administer("user.whoami") << "\n";
  } catch (const linn::Error& error) {
    std::cerr << "linn-whoami: " << error.what() << "\n";
    return error.code() == "auth.failed" ? 2 : 1;
  }
}
