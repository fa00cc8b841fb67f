#include "seal.h"

#include <linn/error.h>

#include "bytes.h"
#include "crc32c.h"

namespace linn::detail {
namespace {

constexpr std::size_t stamp_at = 16, crc_at = 48, count_at = 52;
constexpr std::size_t producer_id_at = 72, first_sequence_at = 80, epoch_at = 84, attributes_at = 86, codec_at = 88;

std::uint32_t sealed_crc(std::string_view batch) noexcept {
  return crc32c(batch.substr(count_at), crc32c(batch.substr(0, stamp_at)));
}

}  // namespace

void check_seal(std::string_view batch) {
  if (batch.size() <= codec_at) throw Error("batch.malformed", "the batch is cut short");
  if (load<std::uint32_t>(batch.data() + crc_at) != sealed_crc(batch))
    throw Error("batch.corrupt", "the CRC of the batch does not match");
}

std::uint32_t record_count(std::string_view batch) noexcept { return load<std::uint32_t>(batch.data() + count_at); }

void seal(std::string& batch) noexcept { store(batch.data() + crc_at, sealed_crc(batch)); }

void number(std::string& batch, const ProducerNumbers& numbers) noexcept {
  store(batch.data() + producer_id_at, numbers.producer_id);
  store(batch.data() + first_sequence_at, numbers.first_sequence);
  store(batch.data() + epoch_at, numbers.epoch);
  store(batch.data() + attributes_at, numbers.attributes);
  seal(batch);
}

}  // namespace linn::detail
