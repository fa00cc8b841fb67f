// Codec: control messages to bytes and back. No I/O.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <linn/client.h>

#include "messages.h"

namespace linn::detail {

std::string encode(std::uint64_t correlation, const Hello& message);
std::string encode(std::uint64_t correlation, const Authenticate& message);
/// Followed by `batches` record batches.
std::string encode(std::uint64_t correlation, const Publish& message, std::uint16_t batches);
std::string encode(std::uint64_t correlation, const FetchRequest& message);
std::string encode(std::uint64_t correlation, const FindOffset& message);
std::string encode(std::uint64_t correlation, const Subscribe& message);
std::string encode(std::uint64_t correlation, const Unsubscribe& message);
std::string encode(std::uint64_t correlation, const Credit& message);
std::string encode(std::uint64_t correlation, const Heartbeat& message);
std::string encode(std::uint64_t correlation, const Settle& message);
std::string encode(std::uint64_t correlation, const Describe& message);
std::string encode(std::uint64_t correlation, const Administer& message);
std::string encode(std::uint64_t correlation, const Goodbye& message);
std::string encode(std::uint64_t correlation, const Ping& message);
std::string encode(std::uint64_t correlation, const Pong& message);

/// What a broker sent: one whole message. Throws Error protocol.malformed.
IncomingFrame decode_frame(std::string_view bytes);

}  // namespace linn::detail
