// Routes: the distinct (routing key, labels) pairs of a batch.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <linn/record.h>

namespace linn::detail {

struct Pair {
  std::string routing_key;
  /// Sorted by name, names distinct.
  std::vector<Label> labels;
};

inline constexpr std::size_t pairs_max = 65'535;
inline constexpr std::size_t labels_max = 256;
inline constexpr std::size_t text_bytes_max = 4'096;
inline constexpr std::size_t routes_bytes_max = 2 << 20;

/// The pair of a record. Throws Error message.invalid where a text is no UTF-8 or too long, where there are too many
/// labels, or two of one name.
Pair make_pair_of(std::string_view routing_key, const std::vector<Label>& labels);

/// Bytes that differ exactly where pairs do, in types and all bits of a float as well.
std::string identity_of(const Pair& pair);

/// A Routes message of one segment; equal pairs give equal bytes. Throws Error message.invalid where it is too large.
std::string encode_routes(const std::vector<Pair>& pairs);

/// Read and check it. Throws Error batch.malformed.
std::vector<Pair> decode_routes(std::string_view bytes, std::size_t count);

}  // namespace linn::detail
