#include "login.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <string_view>
#include <utility>

#include <linn/error.h>

#include "base64.h"
#include "crypto.h"
#include "utf8.h"

namespace linn {
namespace detail {
namespace {

constexpr std::string_view bearer = "OAUTHBEARER", plain = "PLAIN";

struct Range {
  char32_t first, last;
};
/// Characters beyond ASCII that SASLprep (RFC 4013) leaves as they are, whatever is beside them. A table for all others
/// would be larger than the rest of the client.
constexpr std::array<Range, 11> unchanged{{{0xa1, 0xa7},
                                           {0xbf, 0x131},
                                           {0x134, 0x13e},
                                           {0x141, 0x148},
                                           {0x14a, 0x17e},
                                           {0x388, 0x38a},
                                           {0x38c, 0x38c},
                                           {0x38e, 0x3a1},
                                           {0x3a3, 0x3ce},
                                           {0x400, 0x45f},
                                           {0x20ac, 0x20ac}}};

/// Whether a password of UTF-8 is its own prepared form; one of ASCII always is.
bool is_prepared(std::string_view secret) {
  for (std::size_t place = 0; place < secret.size();) {
    const auto lead = static_cast<unsigned char>(secret[place]);
    const std::size_t size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    char32_t character = size == 1 ? lead : lead & (0x7fu >> size);
    for (std::size_t next = 1; next < size; ++next)
      character = character << 6 | (static_cast<unsigned char>(secret[place + next]) & 0x3fu);
    const auto holds = [&](Range range) { return range.first <= character && character <= range.last; };
    if (size > 1 && std::none_of(unchanged.begin(), unchanged.end(), holds)) return false;
    place += size;
  }
  return true;
}

}  // namespace

std::shared_ptr<const Secret> KeptPassword::salted(const Salting& salting) {
  {
    const std::lock_guard lock(mutex_);
    if (salted_ && salting == salting_) return salted_;
  }
  std::string bytes = pbkdf2_sha256(secret_.bytes(), salting.salt, salting.iterations);
  auto salted = std::make_shared<const Secret>(bytes);
  const std::lock_guard lock(mutex_);
  salting_ = salting;
  salted_ = salted;
  return salted;
}

namespace {

class ScramExchange final : public Exchange {
 public:
  ScramExchange(std::shared_ptr<KeptPassword> password, const std::string& binding, bool is_plus)
      : password_(std::move(password)),
        scram_(password_->user(), base64_encode(random_bytes(nonce_bytes)), binding, is_plus) {}

  std::string mechanism() const override { return scram_.mechanism(); }
  std::string begin() override { return scram_.first(); }
  std::string answer(const std::string& data) override {
    return scram_.final(password_->salted(scram_.salting(data))->bytes());
  }
  void end(const std::string& data) override { scram_.check(data); }

 private:
  const std::shared_ptr<KeptPassword> password_;
  ScramClient scram_;
};

/// A login that ends with its first message.
class OneMessage final : public Exchange {
 public:
  OneMessage(std::string_view mechanism, std::function<std::string()> message)
      : mechanism_(mechanism), message_(std::move(message)) {}

  std::string mechanism() const override { return mechanism_; }
  std::string begin() override { return message_(); }
  std::string answer(const std::string&) override {
    throw Error("auth.failed", "the broker can't be trusted: it asks for more than one message");
  }
  void end(const std::string&) override {}

 private:
  const std::string mechanism_;
  const std::function<std::string()> message_;
};

/// What a token's function returns.
std::string called(const std::function<std::string()>& present) {
  try {
    return present();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error("auth.failed", std::string("there is no token: ") + error.what());
  } catch (...) {
    throw Error("auth.failed", "there is no token: its function failed");
  }
}

std::string bearer_message(const std::string& token) {
  const auto is_printable = [](char character) { return ' ' <= character && character <= '~'; };
  if (token.empty() || !std::all_of(token.begin(), token.end(), is_printable))
    throw Error("message.invalid", "a token is printable ASCII, without the end of a line");
  return "n,,\1auth=Bearer " + token + "\1\1";
}

std::string plain_message(const KeptPassword& password) {
  return '\0' + password.user() + '\0' + std::string(password.secret().bytes());
}

[[noreturn]] void not_offered(std::string text, const std::vector<std::string>& offered) {
  text += "; it takes ";
  for (const std::string& mechanism : offered) text += (&mechanism == &offered.front() ? "" : ", ") + mechanism;
  throw Error("auth.failed", offered.empty() ? text + "nothing" : text);
}

bool has(const Offer& offer, std::string_view mechanism) {
  return std::find(offer.mechanisms.begin(), offer.mechanisms.end(), mechanism) != offer.mechanisms.end();
}

}  // namespace

std::unique_ptr<Exchange> begin_login(const std::optional<Login>& login, const Offer& offer) {
  if (!login)
    throw Error("auth.failed", "the broker requires a login: .login = linn::Password(...) or linn::Token(...)");
  const auto* password = std::get_if<Password>(&*login);
  if (password != nullptr && !password->is_plain_) {
    const bool is_plus = !offer.binding.empty() && has(offer, scram_plus);
    if (!is_plus && !has(offer, scram)) not_offered("the broker takes no passwords by SCRAM", offer.mechanisms);
    return std::make_unique<ScramExchange>(password->kept_, offer.binding, is_plus);
  }
  const std::string_view mechanism = password != nullptr ? plain : bearer;
  const std::string what = password != nullptr ? "plain passwords" : "tokens";
  if (!has(offer, mechanism)) not_offered("the broker takes no " + what + " on this connection", offer.mechanisms);
  if (!offer.is_private)
    throw Error("auth.failed", what + " are sent in TLS and on Unix sockets alone: use linns://");
  if (password != nullptr)
    return std::make_unique<OneMessage>(mechanism, [kept = password->kept_] { return plain_message(*kept); });
  const auto present = std::get<Token>(*login).present_;
  return std::make_unique<OneMessage>(mechanism, [present] { return bearer_message(called(present)); });
}

}  // namespace detail

Password::Password(std::string user, std::string& secret, bool is_plain) : is_plain_(is_plain) {
  const auto is_text = [](const std::string& text) {
    return !text.empty() && detail::is_utf8(text) && text.find('\0') == std::string::npos;
  };
  const bool are_texts = is_text(user) && is_text(secret);
  const bool is_usable = are_texts && (is_plain || detail::is_prepared(secret));
  kept_ = std::make_shared<detail::KeptPassword>(std::move(user), secret);
  if (!are_texts) throw Error("message.invalid", "a login needs a user and a password, in UTF-8 without NUL");
  if (!is_usable)
    throw Error("message.invalid",
                "the password has a character that this client can't prepare: it takes ASCII, and Latin, Greek and "
                "Cyrillic letters, each as one character");
}

Password::Password(std::string user, std::string secret) : Password(std::move(user), secret, false) {}

Password Password::plain(std::string user, std::string secret) {
  return Password(std::move(user), secret, true);
}

const std::string& Password::user() const noexcept { return kept_->user(); }

Token::Token(std::string token) : present_([token = std::move(token)] { return token; }) {}

Token::Token(std::function<std::string()> present) {
  if (!present) throw Error("message.invalid", "a token is text, or a function that returns it");
  present_ = [present = std::move(present), one_at_a_time = std::make_shared<std::mutex>()] {
    const std::lock_guard lock(*one_at_a_time);
    return present();
  };
}

}  // namespace linn
