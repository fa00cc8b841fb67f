// zstd for the bodies of batches. Where the library is built without zstd, both functions say so.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace linn::detail {

/// One frame that says its content's size. Throws Error message.unsupported.
std::string zstd_compress(std::string_view body);

/// The content of one frame, which must say that it has `body_bytes`: memory is taken only then.
///
/// Throws Error batch.malformed, message.unsupported.
std::string zstd_decompress(std::string_view frame, std::size_t body_bytes);

}  // namespace linn::detail
