// Seal: the numbers that a producer gives a batch, and the CRC over everything but the broker's stamp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace linn::detail {

/// The bit of `attributes` that says that the broker chooses the partition.
inline constexpr std::uint16_t scattered_attribute = 4;

/// Zeros: the batch has no producer id.
struct ProducerNumbers {
  std::int64_t producer_id = 0;
  std::uint32_t first_sequence = 0;
  std::uint16_t epoch = 0;
  std::uint16_t attributes = 0;
};

/// Check that a batch has its numbers and is sealed. Throws Error batch.malformed, batch.corrupt.
void check_seal(std::string_view batch);

/// The number of records of a batch.
std::uint32_t record_count(std::string_view batch) noexcept;

/// Write the CRC.
void seal(std::string& batch) noexcept;

/// Write a producer's numbers, and the CRC.
void number(std::string& batch, const ProducerNumbers& numbers) noexcept;

}  // namespace linn::detail
