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

// Blocks that fit into a tile, all of them at a time: the processor then computes on one while it
// waits for the scale of another.
template <typename Format>
GRADCOMP_INLINE void EncodeSmallBlocks(const Source& source, int64_t n, int64_t block_size,
                                       uint8_t* scales, uint8_t* codes) {
  float x[kTile];
  LoadCorrected(source, 0, n, x);
  BlockScale blocks[kTile / kBlockMultiple];
  for (int64_t at = 0; at < n; at += block_size) {
    const uint32_t largest = MaxMagnitude(x + at, std::min(block_size, n - at));
    BlockScale& scale = blocks[at / block_size];
    scale = ScaleToLargest(largest, Format::kMax);
    std::memcpy(scales + at / block_size * kScaleSize, &scale.scale, kScaleSize);
  }
  for (int64_t at = 0; at < n; at += block_size) {
    CodesOfTile<Format>(x + at, std::min(block_size, n - at), blocks[at / block_size], codes + at,
                        Advance(source, at).new_residual);
  }
}

template <typename Format>
GRADCOMP_INLINE void EncodeLargeBlock(const Source& block, int64_t size, uint8_t* scales,
                                      uint8_t* codes) {
  float x[kTile];
  uint32_t largest = 0;
  for (int64_t at = 0; at < size; at += kTile) {
    const int64_t length = std::min(kTile, size - at);
    largest = std::max(largest, LoadCorrected(block, at, length, x));
  }
  const BlockScale scale = ScaleToLargest(largest, Format::kMax);
  std::memcpy(scales, &scale.scale, kScaleSize);
  for (int64_t at = 0; at < size; at += kTile) {
    const int64_t length = std::min(kTile, size - at);
    LoadCorrected(block, at, length, x);
    CodesOfTile<Format>(x, length, scale, codes + at, Advance(block, at).new_residual);
  }
}

template <typename Format>
GRADCOMP_INLINE void Encode(const Source& source, int64_t n, int64_t block_size, int64_t first,
                            int64_t count, uint8_t* payload) {
  uint8_t* scales = payload + first / block_size * kScaleSize;
  uint8_t* codes = payload + CeilDiv(n, block_size) * kScaleSize + first;
  const int64_t step = std::max(block_size, kTile / block_size * block_size);
  for (int64_t at = 0; at < count; at += step) {
    const int64_t size = std::min(step, count - at);
    const Source here = Advance(source, at);
    if (step <= kTile) {
      EncodeSmallBlocks<Format>(here, size, block_size, scales + at / block_size * kScaleSize,
                                codes + at);
    } else {
      EncodeLargeBlock<Format>(here, size, scales + at / block_size * kScaleSize, codes + at);
    }
  }
}

// Sets sum to codes * scale, or adds them.
template <typename Format, bool kFinite>
GRADCOMP_INLINE void AddCodes(const int8_t* __restrict codes, int64_t n, float scale, bool add,
                              float* __restrict sum) {
  const auto value = [](int8_t code) {
    return kFinite ? FloatFromFiniteFloat8<Format>(code) : FloatFromFloat8<Format>(code);
  };
  if (add) {
    for (int64_t i = 0; i < n; ++i) sum[i] += value(codes[i]) * scale;
  } else {
    for (int64_t i = 0; i < n; ++i) sum[i] = value(codes[i]) * scale;
  }
}

// Whether all codes are those of finite values, as an encoder's are.
template <typename Format>
GRADCOMP_INLINE bool AreFinite(const int8_t* codes, int64_t n) {
  uint8_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, static_cast<uint8_t>(codes[i] & 0x7f));
  }
  return largest < Format::kFirstSpecial;
}

// Adds elements [first, first + n) of one payload to sum, or sets it.
template <typename Format>
GRADCOMP_INLINE void AddBlocks(const uint8_t* scales, const uint8_t* codes, int64_t block_size,
                               int64_t first, int64_t n, bool add, float* sum) {
  int64_t block = first / block_size;
  for (int64_t at = first; at < first + n; ++block) {
    const int64_t length = std::min((block + 1) * block_size, first + n) - at;
    float scale;
    std::memcpy(&scale, scales + block * kScaleSize, kScaleSize);
    const int8_t* from = reinterpret_cast<const int8_t*>(codes + at);
    if (AreFinite<Format>(from, length)) {
      AddCodes<Format, true>(from, length, scale, add, sum + (at - first));
    } else {
      AddCodes<Format, false>(from, length, scale, add, sum + (at - first));
    }
    at += length;
  }
}

template <typename Format>
GRADCOMP_INLINE bool Decode(const uint8_t* payloads, int64_t stride, int64_t world, int64_t n,
                            int64_t block_size, int64_t first, int64_t count, const Sink& sink) {
  bool finite = true;
  for (int64_t at = 0; at < count; at += kTile) {
    const int64_t length = std::min(kTile, count - at);
    float sum[kTile];
    for (int64_t rank = 0; rank < world; ++rank) {
      const uint8_t* scales = payloads + rank * stride;
      const uint8_t* codes = scales + CeilDiv(n, block_size) * kScaleSize;
      AddBlocks<Format>(scales, codes, block_size, first + at, length, rank > 0, sum);
    }
    finite &= StoreScaled(sum, length, sink, at);
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
