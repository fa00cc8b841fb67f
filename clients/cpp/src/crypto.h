// What logins need of OpenSSL; in a build without it, every function here throws Error auth.failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace linn::detail {

std::string random_bytes(std::size_t count);
std::string sha256(std::string_view bytes);
std::string hmac_sha256(std::string_view key, std::string_view bytes);
/// PBKDF2 with HMAC-SHA-256, 32 bytes. Takes as long as `iterations` say: 11 ms for 32,768.
std::string pbkdf2_sha256(std::string_view password, std::string_view salt, std::uint32_t iterations);
/// Whether both are the same, in a time that does not tell where they differ.
bool same_bytes(std::string_view one, std::string_view other);

}  // namespace linn::detail
