// ScramClient: the client's side of SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677). No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace linn::detail {

inline constexpr std::string_view scram = "SCRAM-SHA-256", scram_plus = "SCRAM-SHA-256-PLUS";
/// Random bytes of a nonce.
inline constexpr std::size_t nonce_bytes = 18;
/// The least that RFC 7677 allows; a broker that asks for fewer wants the password to be guessed.
inline constexpr std::uint32_t iterations_min = 4'096;
/// A client computes no more, which takes 3 s: a broker could keep it busy.
inline constexpr std::uint32_t iterations_max = 10'000'000;

/// What a salted password is computed with.
struct Salting {
  std::string salt;
  std::uint32_t iterations = 0;

  bool operator==(const Salting&) const = default;
};

/// One login: `first`, `salting`, `final`, `check`, in this order. The nonce is compared in full (CVE-2024-56128). All
/// throw Error auth.failed where the broker is not to be trusted.
class ScramClient {
 public:
  /// `nonce`: printable ASCII without a comma. `binding`: the hash of the broker's certificate; empty without TLS.
  /// `is_plus`: the broker offers PLUS. Where it does not, it is told that this client could: it refuses the login if
  /// it has offered PLUS, and a proxy has changed that.
  ScramClient(std::string_view user, std::string nonce, std::string binding, bool is_plus);

  std::string mechanism() const { return std::string(is_plus_ ? scram_plus : scram); }
  /// The first message.
  std::string first() const { return header_ + bare_; }
  /// Read the broker's answer; what to salt the password with.
  Salting salting(const std::string& server_first);
  /// The last message, with a proof made from the salted password.
  std::string final(std::string_view salted);
  /// Check the broker's last message: that it knows the user's password, or what it stores of it.
  void check(std::string_view server_final) const;

 private:
  const bool is_plus_;
  std::string header_;
  std::string binding_;
  std::string nonce_;
  std::string bare_;
  std::string server_first_;
  /// The client's, and behind it the broker's.
  std::string whole_nonce_;
  std::string signature_;
};

}  // namespace linn::detail
