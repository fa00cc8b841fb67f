// CRC-32C (Castagnoli), as a batch is sealed with.
#pragma once

#include <cstdint>
#include <string_view>

namespace linn::detail {

/// The CRC of `bytes`; to go on behind earlier bytes, give their CRC.
std::uint32_t crc32c(std::string_view bytes, std::uint32_t earlier = 0) noexcept;

/// The same by table, which `crc32c` uses where the processor has no instruction for it.
std::uint32_t crc32c_by_table(std::string_view bytes, std::uint32_t earlier = 0) noexcept;

}  // namespace linn::detail
