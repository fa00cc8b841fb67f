#include "scram.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <linn/error.h>

#include "base64.h"
#include "crypto.h"
#include "secret.h"

namespace linn::detail {
namespace {

/// Of the broker's; the longest nonces, salt and extensions have less than a KiB.
constexpr std::size_t message_bytes_max = 4 << 10;

[[noreturn]] void not_trusted(const std::string& text) {
  throw Error("auth.failed", "the broker can't be trusted: " + text);
}

std::string escaped(std::string_view user) {
  std::string text;
  for (const char character : user) {
    if (character == '=')
      text += "=3D";
    else if (character == ',')
      text += "=2C";
    else
      text += character;
  }
  return text;
}

/// Take the attribute that a message begins with, and the comma behind it; its value.
std::string_view take_attribute(std::string_view& message, std::string_view name) {
  const std::string_view attribute = message.substr(0, message.find(','));
  if (!attribute.starts_with(name)) not_trusted("its answer is not SCRAM");
  message.remove_prefix(std::min(message.size(), attribute.size() + 1));
  return attribute.substr(name.size());
}

std::uint32_t checked_iterations(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size())
    not_trusted("its answer is not SCRAM");
  if (number < iterations_min || number > iterations_max)
    not_trusted("it asks for " + std::to_string(number) + " iterations, and a client computes " +
                std::to_string(iterations_min) + " to " + std::to_string(iterations_max));
  return static_cast<std::uint32_t>(number);
}

void check_text(std::string_view message) {
  if (message.size() > message_bytes_max || message.find('\0') != std::string_view::npos)
    not_trusted("its answer is not SCRAM");
}

std::string xored(std::string one, std::string_view other) {
  for (std::size_t place = 0; place < one.size(); ++place) one[place] = static_cast<char>(one[place] ^ other[place]);
  return one;
}

}  // namespace

ScramClient::ScramClient(std::string_view user, std::string nonce, std::string binding, bool is_plus)
    : is_plus_(is_plus),
      header_(is_plus ? "p=tls-server-end-point,," : binding.empty() ? "n,," : "y,,"),
      nonce_(std::move(nonce)),
      bare_("n=" + escaped(user) + ",r=" + nonce_) {
  if (is_plus) binding_ = std::move(binding);
}

Salting ScramClient::salting(const std::string& server_first) {
  if (!server_first_.empty()) not_trusted("it sent its first message twice");
  check_text(server_first);
  std::string_view rest = server_first;
  const std::string_view nonce = take_attribute(rest, "r=");
  const std::string_view salt_text = take_attribute(rest, "s=");
  const std::string_view iterations = take_attribute(rest, "i=");
  if (!nonce.starts_with(nonce_) || nonce.size() <= nonce_.size()) not_trusted("it answered another login");
  const std::optional<std::string> salt = base64_decode(salt_text);
  if (!salt || salt->empty()) not_trusted("its answer is not SCRAM");
  Salting salting{*salt, checked_iterations(iterations)};
  server_first_ = server_first;
  whole_nonce_ = nonce;
  return salting;
}

std::string ScramClient::final(std::string_view salted) {
  const std::string without_proof = "c=" + base64_encode(header_ + binding_) + ",r=" + whole_nonce_;
  const std::string signed_text = bare_ + "," + server_first_ + "," + without_proof;
  std::string client_key_bytes = hmac_sha256(salted, "Client Key");
  const Secret client_key(client_key_bytes);
  const std::string client_signature = hmac_sha256(sha256(client_key.bytes()), signed_text);
  signature_ = hmac_sha256(hmac_sha256(salted, "Server Key"), signed_text);
  return without_proof + ",p=" + base64_encode(xored(client_signature, client_key.bytes()));
}

void ScramClient::check(std::string_view server_final) const {
  check_text(server_final);
  const std::optional<std::string> proof =
      server_final.starts_with("v=") ? base64_decode(server_final.substr(2, server_final.find(',') - 2)) : std::nullopt;
  if (signature_.empty() || !proof || !same_bytes(*proof, signature_))
    not_trusted("it has not proved that it knows this user");
}

}  // namespace linn::detail
