#include "cpu/float8.h"

#include <algorithm>
#include <cstring>

#include "core/block_scale.h"
#include "core/float8.h"
#include "cpu/simd.h"

namespace gradcomp {
namespace {

constexpr int64_t kScaleSize = sizeof(float);

template <typename Format, bool kResidual>
GRADCOMP_INLINE void CodesOfTile(const float* __restrict x, int64_t n, BlockScale block,
                                 uint8_t* __restrict codes, Float32* __restrict new_residual) {
  for (int64_t i = 0; i < n; ++i) {
    const RoundedToFloat8 rounded = RoundToFloat8<Format>(x[i] * block.inverse);
    codes[i] = static_cast<uint8_t>(rounded.code);
    if constexpr (kResidual) new_residual[i].value = x[i] - rounded.value * block.scale;
  }
}

template <typename Format>
GRADCOMP_INLINE void CodesOfTile(const float* x, int64_t n, BlockScale block, uint8_t* codes,
                                 Float32* new_residual) {
  if (block.inverse == 0) {
    std::fill_n(codes, n, uint8_t{0});
    for (int64_t i = 0; new_residual && i < n; ++i) {
      new_residual[i].value = Canonical(x[i] - block.scale);
    }
  } else if (new_residual) {
    CodesOfTile<Format, true>(x, n, block, codes, new_residual);
  } else {
    CodesOfTile<Format, false>(x, n, block, codes, nullptr);
  }
}

template <typename Format>
GRADCOMP_INLINE void Encode(const Source& source, int64_t n, int64_t block_size, int64_t first,
                            int64_t count, uint8_t* payload) {
  uint8_t* scales = payload;
  uint8_t* codes = payload + CeilDiv(n, block_size) * kScaleSize;
  for (int64_t begin = first; begin < first + count; begin += block_size) {
    const int64_t size = std::min(block_size, n - begin);
    const Source block = Advance(source, begin - first);
    float x[kTile];
    uint32_t largest = 0;
    for (int64_t at = 0; at < size; at += kTile) {
      const int64_t length = std::min(kTile, size - at);
      LoadCorrected(block, at, length, x);
      largest = std::max(largest, MaxMagnitude(x, length));
    }
    const BlockScale scale = ScaleToLargest(largest, Format::kMax);
    std::memcpy(scales + begin / block_size * kScaleSize, &scale.scale, kScaleSize);
    for (int64_t at = 0; at < size; at += kTile) {
      const int64_t length = std::min(kTile, size - at);
      // A block of one tile is still there.
      if (size > kTile) LoadCorrected(block, at, length, x);
      CodesOfTile<Format>(x, length, scale, codes + begin + at, Advance(block, at).new_residual);
    }
  }
}

template <typename Format>
GRADCOMP_INLINE bool Decode(const uint8_t* payloads, int64_t stride, int64_t world, int64_t n,
                            int64_t block_size, int64_t first, int64_t count, const Sink& sink) {
  const uint8_t* scales = payloads;
  const uint8_t* codes = payloads + CeilDiv(n, block_size) * kScaleSize;
  bool finite = true;
  for (int64_t at = first; at < first + count;) {
    const int64_t block = at / block_size;
    const int64_t length = std::min({kTile, (block + 1) * block_size - at, first + count - at});
    float sum[kTile];
    for (int64_t rank = 0; rank < world; ++rank) {
      float scale;
      std::memcpy(&scale, scales + rank * stride + block * kScaleSize, kScaleSize);
      const uint8_t* __restrict from = codes + rank * stride + at;
      if (rank == 0) {
        for (int64_t i = 0; i < length; ++i) sum[i] = FloatFromFloat8<Format>(from[i]) * scale;
      } else {
        for (int64_t i = 0; i < length; ++i) sum[i] += FloatFromFloat8<Format>(from[i]) * scale;
      }
    }
    finite &= StoreScaled(sum, length, sink, at - first);
    at += length;
  }
  return finite;
}

}  // namespace

GRADCOMP_CLONES void Float8Encode(const Codec& codec, const Source& source, int64_t n,
                                  int64_t first, int64_t count, uint8_t* payload) {
  if (codec.family == Family::kFloat8E4M3) {
    return Encode<E4M3>(source, n, codec.block_size, first, count, payload);
  }
  return Encode<E5M2>(source, n, codec.block_size, first, count, payload);
}

GRADCOMP_CLONES bool Float8Decode(const Codec& codec, const uint8_t* payloads, int64_t stride,
                                  int64_t world, int64_t n, int64_t first, int64_t count,
                                  const Sink& sink) {
  const int64_t block = codec.block_size;
  if (codec.family == Family::kFloat8E4M3) {
    return Decode<E4M3>(payloads, stride, world, n, block, first, count, sink);
  }
  return Decode<E5M2>(payloads, stride, world, n, block, first, count, sink);
}

}  // namespace gradcomp
