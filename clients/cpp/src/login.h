// Exchange: the client's side of one login on one connection. No I/O, but for what a token's function does.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <linn/login.h>

#include "scram.h"
#include "secret.h"

namespace linn::detail {

/// A password, and what the last login salted it to: a new connection to the same broker computes nothing. Safe to use
/// from many threads.
class KeptPassword {
 public:
  /// Takes a copy of the secret, and wipes it.
  KeptPassword(std::string user, std::string& secret) : user_(std::move(user)), secret_(secret) {}

  const std::string& user() const noexcept { return user_; }
  const Secret& secret() const noexcept { return secret_; }
  std::shared_ptr<const Secret> salted(const Salting& salting);

 private:
  const std::string user_;
  const Secret secret_;
  std::mutex mutex_;
  Salting salting_;
  std::shared_ptr<const Secret> salted_;
};

/// What a broker offers on one connection.
struct Offer {
  std::vector<std::string> mechanisms;
  /// The hash of the broker's certificate; empty without TLS.
  std::string binding;
  /// TLS or a Unix socket: nobody in between can read what is sent.
  bool is_private = false;
};

/// `begin`, `answer` for each further challenge, then `end`. All throw Error auth.failed where the login can't go on.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::string mechanism() const = 0;
  /// The first message. Throws Error message.invalid (a token that can't be sent), and what a token's function throws.
  virtual std::string begin() = 0;
  /// The answer to the broker's message, of which each mechanism takes so many: no broker can have a login go on.
  virtual std::string answer(const std::string& data) = 0;
  /// Check the broker's last message, before anything else of its welcome is trusted.
  virtual void end(const std::string& data) = 0;
};

/// Begin the login that a broker asks for.
///
/// Throws Error auth.failed: there is no login, or none of the mechanisms is for it.
std::unique_ptr<Exchange> begin_login(const std::optional<Login>& login, const Offer& offer);

}  // namespace linn::detail
