#include "tls.h"

#include <linn/error.h>

#if LINN_WITH_OPENSSL

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

namespace linn::detail {
namespace {

constexpr std::size_t record_bytes = 16 << 10;

[[noreturn]] void lost(const std::string& text) { throw Error("connection.lost", text, true); }
[[noreturn]] void refused(const std::string& text) { throw Error("tls.failed", "no TLS connection: " + text, true); }

/// Why OpenSSL's last call failed.
std::string reason() {
  const unsigned long code = ::ERR_peek_last_error();
  const char* text = ::ERR_reason_error_string(code);
  ::ERR_clear_error();
  return text != nullptr ? text : "the connection ended";
}

// --- the socket, without SIGPIPE ---

int descriptor_of(BIO* bio) { return static_cast<int>(reinterpret_cast<std::intptr_t>(::BIO_get_data(bio))); }

int write_socket(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = ::send(descriptor_of(bio), data, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(count);
}

int read_socket(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = ::recv(descriptor_of(bio), data, static_cast<std::size_t>(size), 0);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(count);
}

long control_socket(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* new_bio(int descriptor) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "linn socket");
    ::BIO_meth_set_write(made, write_socket);
    ::BIO_meth_set_read(made, read_socket);
    ::BIO_meth_set_ctrl(made, control_socket);
    return made;
  }();
  BIO* bio = ::BIO_new(method);
  ::BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)));
  ::BIO_set_init(bio, 1);
  return bio;
}

// --- options ---

using Context = std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)>;

[[noreturn]] void unusable(const std::string& option, const std::string& file) {
  throw Error("message.invalid", "tls: " + option + ": " + file + ": " + reason());
}

Context new_context(const TlsOptions& options) {
  Context context(::SSL_CTX_new(::TLS_client_method()), &::SSL_CTX_free);
  if (!context) refused(reason());
  ::SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  ::SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  ::SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if (options.ca.empty())
    ::SSL_CTX_set_default_verify_paths(context.get());
  else if (::SSL_CTX_load_verify_locations(context.get(), options.ca.c_str(), nullptr) != 1)
    unusable("ca", options.ca);
  if (options.certificate.empty()) {
    if (!options.key.empty()) throw Error("message.invalid", "tls: a key needs its certificate");
    return context;
  }
  const std::string& key = options.key.empty() ? options.certificate : options.key;
  if (::SSL_CTX_use_certificate_chain_file(context.get(), options.certificate.c_str()) != 1)
    unusable("certificate", options.certificate);
  if (::SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) != 1) unusable("key", key);
  return context;
}

/// Have the certificate checked against a name or an address, by its alternative names alone (RFC 9525).
void expect_host(SSL* ssl, const std::string& host) {
  X509_VERIFY_PARAM* wanted = ::SSL_get0_param(ssl);
  ::X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  const bool is_address = ::X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) == 1;
  ::ERR_clear_error();
  if (is_address) return;
  if (::X509_VERIFY_PARAM_set1_host(wanted, host.c_str(), host.size()) != 1) refused("no such host: " + host);
  ::SSL_set_tlsext_host_name(ssl, host.c_str());
}

/// As `Tls::server_end_point`.
std::string end_point_of(X509* certificate) {
  int hash = NID_undef;
  if (::X509_get_signature_info(certificate, &hash, nullptr, nullptr, nullptr) != 1) hash = NID_undef;
  ::ERR_clear_error();
  if (hash == NID_undef) return {};
  if (hash == NID_md5 || hash == NID_sha1) hash = NID_sha256;  // RFC 5929, 4.1.
  const EVP_MD* digest = ::EVP_get_digestbynid(hash);
  std::string bytes(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  if (digest == nullptr ||
      ::X509_digest(certificate, digest, reinterpret_cast<unsigned char*>(bytes.data()), &size) != 1)
    return {};
  bytes.resize(size);
  return bytes;
}

// --- the connection ---

class OpenSsl final : public Tls {
 public:
  OpenSsl(int descriptor, const std::string& host, const TlsOptions& options)
      : context_(new_context(options)), ssl_(::SSL_new(context_.get()), &::SSL_free) {
    if (!ssl_) refused(reason());
    BIO* bio = new_bio(descriptor);
    ::SSL_set_bio(ssl_.get(), bio, bio);
    expect_host(ssl_.get(), host);
  }

  void shake_hands(int descriptor, std::chrono::steady_clock::time_point deadline, WaitFor wait_for) {
    for (;;) {
      ::ERR_clear_error();
      const int result = ::SSL_connect(ssl_.get());
      if (result == 1) return;
      const int problem = ::SSL_get_error(ssl_.get(), result);
      if (problem != SSL_ERROR_WANT_READ && problem != SSL_ERROR_WANT_WRITE) fail_handshake(problem);
      if (!wait_for(descriptor, problem == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline))
        throw Error("connection.failed", "the TLS handshake was not over in time", true);
    }
  }

  std::size_t receive(char* buffer, std::size_t size) override {
    const std::lock_guard lock(mutex_);
    std::size_t filled = 0;
    while (filled < size) {
      ::ERR_clear_error();
      std::size_t count = 0;
      if (::SSL_read_ex(ssl_.get(), buffer + filled, size - filled, &count) == 1) {
        filled += count;
        has_received_ = true;
        continue;
      }
      const int problem = ::SSL_get_error(ssl_.get(), 0);
      has_more_ = problem != SSL_ERROR_WANT_READ && problem != SSL_ERROR_WANT_WRITE;
      if (!has_more_ || filled > 0) return filled;  // The end comes again.
      if (problem == SSL_ERROR_ZERO_RETURN) lost("the broker closed the connection");
      const std::string text = reason();
      // In TLS 1.3 a client learns only now that its certificate is not accepted.
      if (problem == SSL_ERROR_SSL && !has_received_) refused(text);
      lost("the connection was lost: " + text);
    }
    has_more_ = true;
    return filled;
  }

  std::size_t send_some(std::span<const std::string_view> buffers) override {
    const std::lock_guard lock(mutex_);
    std::size_t sent = 0;
    for (;;) {
      // A call that found no room is repeated with the same first bytes: the caller passes what was not sent.
      gather(buffers, sent);
      if (piece_.empty()) return sent;
      ::ERR_clear_error();
      std::size_t count = 0;
      if (::SSL_write_ex(ssl_.get(), piece_.data(), piece_.size(), &count) != 1) {
        const int problem = ::SSL_get_error(ssl_.get(), 0);
        if (problem == SSL_ERROR_WANT_WRITE || problem == SSL_ERROR_WANT_READ) return sent;
        lost("the connection was lost: " + reason());
      }
      sent += count;
    }
  }

  bool has_more() override {
    const std::lock_guard lock(mutex_);
    return has_more_ || ::SSL_pending(ssl_.get()) > 0;
  }

  std::string server_end_point() const override {
    const std::unique_ptr<X509, decltype(&::X509_free)> certificate(::SSL_get_peer_certificate(ssl_.get()),
                                                                    &::X509_free);
    return certificate ? end_point_of(certificate.get()) : std::string();
  }

  void end_sending() noexcept override {
    const std::lock_guard lock(mutex_);
    ::SSL_shutdown(ssl_.get());
    ::ERR_clear_error();
  }

 private:
  [[noreturn]] void fail_handshake(int problem) const {
    const long verified = ::SSL_get_verify_result(ssl_.get());
    if (verified != X509_V_OK)
      refused(std::string("the certificate is not accepted: ") + ::X509_verify_cert_error_string(verified));
    if (problem == SSL_ERROR_SYSCALL || problem == SSL_ERROR_ZERO_RETURN)
      lost("the broker closed the connection during the TLS handshake");
    const std::string text = reason();
    if (text == "wrong version number" || text == "packet length too long")
      refused("the broker does not speak TLS: its URL begins with linn://, not linns://");
    refused(text);
  }

  /// Put the bytes behind the first `skipped` together, as many as a record takes.
  void gather(std::span<const std::string_view> buffers, std::size_t skipped) {
    piece_.clear();
    for (std::string_view buffer : buffers) {
      const std::size_t left_out = std::min(skipped, buffer.size());
      skipped -= left_out;
      buffer.remove_prefix(left_out);
      piece_ += buffer.substr(0, record_bytes - piece_.size());
      if (piece_.size() == record_bytes) return;
    }
  }

  std::mutex mutex_;
  Context context_;
  std::unique_ptr<SSL, decltype(&::SSL_free)> ssl_;
  std::string piece_;
  bool has_more_ = false;
  bool has_received_ = false;
};

}  // namespace

std::unique_ptr<Tls> Tls::open(int descriptor, const std::string& host, const TlsOptions& options,
                               std::chrono::steady_clock::time_point deadline, WaitFor wait_for) {
  auto made = std::make_unique<OpenSsl>(descriptor, host, options);
  made->shake_hands(descriptor, deadline, wait_for);
  return made;
}

}  // namespace linn::detail

#else

namespace linn::detail {

std::unique_ptr<Tls> Tls::open(int, const std::string&, const TlsOptions&, std::chrono::steady_clock::time_point,
                               WaitFor) {
  throw Error("tls.failed", "no TLS connection: this client was built without OpenSSL");
}

}  // namespace linn::detail

#endif
