// Logins: a user's password, or a token, for a broker whose listener requires one.
//
//     auto client = linn::Client::connect("linns://broker.example", {.login = linn::Password("ann", secret)});
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

namespace linn {

class Password;
class Token;

/// How a client says who it is, where the connection itself does not: by its certificate, or by a Unix socket.
using Login = std::variant<Password, Token>;

namespace detail {
class Exchange;
class KeptPassword;
struct Offer;
std::unique_ptr<Exchange> begin_login(const std::optional<Login>& login, const Offer& offer);
}  // namespace detail

/// A user's name and password. The password is not sent: both sides prove that they know it (SCRAM-SHA-256), inside TLS
/// for the broker's certificate alone (SCRAM-SHA-256-PLUS). A client built without OpenSSL can't: connecting then fails
/// with auth.failed.
///
/// Copies share the password, and the hash of it that the first login takes 11 ms to compute. Both are overwritten with
/// the last copy.
class Password {
 public:
  /// `secret`: ASCII, and Latin, Greek and Cyrillic letters. Other characters may be written in several ways, which the
  /// client does not know to be the same.
  ///
  /// Throws Error message.invalid: such a character, no UTF-8, or one of the two is empty.
  Password(std::string user, std::string secret);
  /// A password of any characters that is sent as it is (PLAIN), inside TLS or on a Unix socket alone: for a broker that
  /// has it checked elsewhere, such as in a directory. Needs no OpenSSL. Throws Error message.invalid.
  static Password plain(std::string user, std::string secret);

  const std::string& user() const noexcept;

 private:
  /// Wipes `secret`.
  Password(std::string user, std::string& secret, bool is_plain);

  friend std::unique_ptr<detail::Exchange> detail::begin_login(const std::optional<Login>&, const detail::Offer&);
  std::shared_ptr<detail::KeptPassword> kept_;
  bool is_plain_ = false;
};

/// A token of an identity provider. It is sent inside TLS or on a Unix socket alone; elsewhere connecting fails with
/// auth.failed.
class Token {
 public:
  explicit Token(std::string token);
  /// The function returns the present token. It is called at each connection, by the thread that connects: the caller's
  /// for the first, later one of the client's, and one at a time. It must neither use nor own the client. An Error that it throws is what
  /// this attempt fails with, and where it is retriable, the client tries again; another exception is auth.failed.
  explicit Token(std::function<std::string()> present);

 private:
  friend std::unique_ptr<detail::Exchange> detail::begin_login(const std::optional<Login>&, const detail::Offer&);
  std::function<std::string()> present_;
};

}  // namespace linn
