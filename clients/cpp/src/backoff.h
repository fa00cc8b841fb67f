// Backoff: the waits between attempts to connect, and to send a batch that the broker refused for now.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>

#include <linn/client.h>

namespace linn::detail {

/// The wait after an attempt, by the number of attempts before it: doubling, less up to half of it at random.
std::chrono::milliseconds backoff_after(std::uint64_t attempts, const ClientOptions& options, std::mt19937_64& random);

}  // namespace linn::detail
