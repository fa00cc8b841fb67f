#include "crypto.h"

#include <linn/error.h>

#if LINN_WITH_OPENSSL

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

namespace linn::detail {
namespace {

constexpr std::size_t hash_bytes = 32;

unsigned char* writable(std::string& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }
const unsigned char* readable(std::string_view bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }

void check(bool succeeded) {
  if (!succeeded) throw Error("linn.internal", "OpenSSL refuses what a login needs, such as SHA-256");
}

}  // namespace

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  check(::RAND_bytes(writable(bytes), static_cast<int>(count)) == 1);
  return bytes;
}

std::string sha256(std::string_view bytes) {
  std::string hash(hash_bytes, '\0');
  check(::EVP_Digest(bytes.data(), bytes.size(), writable(hash), nullptr, ::EVP_sha256(), nullptr) == 1);
  return hash;
}

std::string hmac_sha256(std::string_view key, std::string_view bytes) {
  std::string hash(hash_bytes, '\0');
  check(::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), readable(bytes), bytes.size(), writable(hash),
               nullptr) != nullptr);
  return hash;
}

std::string pbkdf2_sha256(std::string_view password, std::string_view salt, std::uint32_t iterations) {
  std::string hash(hash_bytes, '\0');
  check(::PKCS5_PBKDF2_HMAC(password.data(), static_cast<int>(password.size()), readable(salt),
                            static_cast<int>(salt.size()), static_cast<int>(iterations), ::EVP_sha256(),
                            static_cast<int>(hash_bytes), writable(hash)) == 1);
  return hash;
}

bool same_bytes(std::string_view one, std::string_view other) {
  return one.size() == other.size() && ::CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace linn::detail

#else

namespace linn::detail {
namespace {

[[noreturn]] void missing() {
  throw Error("auth.failed", "no login by password: this client was built without OpenSSL");
}

}  // namespace

std::string random_bytes(std::size_t) { missing(); }
std::string sha256(std::string_view) { missing(); }
std::string hmac_sha256(std::string_view, std::string_view) { missing(); }
std::string pbkdf2_sha256(std::string_view, std::string_view, std::uint32_t) { missing(); }
bool same_bytes(std::string_view, std::string_view) { missing(); }

}  // namespace linn::detail

#endif
