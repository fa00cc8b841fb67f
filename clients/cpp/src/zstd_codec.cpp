#include "zstd_codec.h"

#include <linn/batch.h>
#include <linn/error.h>

#if LINN_WITH_ZSTD
#include <algorithm>
#include <cstdint>
#include <memory>

#include <zstd.h>
#endif

namespace linn {

bool zstd_available() noexcept { return LINN_WITH_ZSTD != 0; }

namespace detail {

#if LINN_WITH_ZSTD
namespace {

constexpr int level = 3;
constexpr std::uint64_t window_bytes_max = 8 << 20;  // A frame may ask for more only where its content is larger.
constexpr int window_log_max = 31;                   // What zstd can do; `window_bytes_of` is the real check.

/// The window that a frame asks for (RFC 8878, 3.1.1.1); 0 for one that takes its content's size.
std::uint64_t window_bytes_of(std::string_view frame) noexcept {
  const auto descriptor = static_cast<unsigned char>(frame[4]);
  if ((descriptor & 0x20) != 0) return 0;
  const auto window = static_cast<unsigned char>(frame[5]);
  const std::uint64_t least = std::uint64_t{1} << (10 + (window >> 3));
  return least + (least >> 3) * (window & 7);
}

}  // namespace

std::string zstd_compress(std::string_view body) {
  std::string frame(ZSTD_compressBound(body.size()), '\0');
  const std::size_t size = ZSTD_compress(frame.data(), frame.size(), body.data(), body.size(), level);
  if (ZSTD_isError(size) != 0) throw Error("linn.internal", ZSTD_getErrorName(size));
  frame.resize(size);
  return frame;
}

std::string zstd_decompress(std::string_view frame, std::size_t body_bytes) {
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != body_bytes)
    throw Error("batch.malformed", "the compressed body does not say the size that the batch says");
  const std::size_t frame_bytes = ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  // A whole frame has at least the six bytes that are looked at below.
  if (ZSTD_isError(frame_bytes) != 0 || frame.size() < 6 || frame_bytes != frame.size())
    throw Error("batch.malformed", "the compressed body is not one zstd frame");
  if (window_bytes_of(frame) > std::max<std::uint64_t>(window_bytes_max, body_bytes))
    throw Error("batch.malformed", "the compressed body asks for too large a window");
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(), &ZSTD_freeDCtx);
  if (!context) throw Error("linn.internal", "no memory for zstd");
  ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, window_log_max);
  std::string body(body_bytes, '\0');
  ZSTD_inBuffer input{frame.data(), frame.size(), 0};
  ZSTD_outBuffer output{body.data(), body.size(), 0};
  const std::size_t left = ZSTD_decompressStream(context.get(), &output, &input);
  if (left != 0 || output.pos != body.size() || input.pos != frame.size())
    throw Error("batch.malformed", "the body can't be decompressed");
  return body;
}

#else

std::string zstd_compress(std::string_view) {
  throw Error("message.unsupported", "this client was built without zstd");
}

std::string zstd_decompress(std::string_view, std::size_t) {
  throw Error("message.unsupported", "the batch is compressed, and this client was built without zstd");
}

#endif

}  // namespace detail
}  // namespace linn
