// What a codec is, and how many bytes it makes of n elements: the one place that knows.

#ifndef GRADCOMP_CORE_CODEC_H_
#define GRADCOMP_CORE_CODEC_H_

#include <cstdint>

#include "core/elias_fano.h"
#include "core/macros.h"

namespace gradcomp {

enum class Family : int32_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3,
  kFloat8E5M2,
  kQuantize,
  kSign,
  kTopK,
};
enum class DType : int32_t { kFloat32, kFloat16, kBFloat16 };

// Longest segment, and largest start or block size: keeps every size computed below in int64.
constexpr int64_t kMaxLength = int64_t{1} << 40;
// Top-k sorts positions as 32-bit integers.
constexpr int64_t kMaxTopKLength = (int64_t{1} << 32) - 1;
// Blocks start at multiples of it, so that packed codes and random bits never straddle a byte or
// word.
constexpr int64_t kBlockMultiple = 32;

// A kernel and its parameters. Those that a family does not use stay at their defaults.
struct Codec {
  Family family = Family::kFloat32;
  int bits = 0;                      // quantize, and top-k with quantised values: 8, 4 or 2
  int64_t block_size = 0;            // where scales are sent: elements that share one
  bool stochastic = false;           // as bits: round at random, else to nearest
  Family values = Family::kFloat32;  // top-k: how the kept values are sent; never kTopK
};

GRADCOMP_HOST_DEVICE constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether payloads of a family, which is not top-k, hold a scale a block.
GRADCOMP_HOST_DEVICE constexpr bool HasScales(Family family) {
  return family == Family::kFloat8E4M3 || family == Family::kFloat8E5M2 ||
         family == Family::kQuantize || family == Family::kSign;
}

// Bits that an element takes in a block of a family that has scales.
GRADCOMP_HOST_DEVICE constexpr int BitsOfCode(const Codec& codec) {
  if (codec.family == Family::kQuantize) return codec.bits;
  return codec.family == Family::kSign ? 1 : 8;
}

// The codec of top-k's kept values.
GRADCOMP_HOST_DEVICE constexpr Codec ValuesCodec(const Codec& codec) {
  return {codec.values, codec.bits, codec.block_size, codec.stochastic, Family::kFloat32};
}

GRADCOMP_HOST_DEVICE constexpr bool IsValid(const Codec& codec) {
  if (codec.family == Family::kTopK) {
    return codec.values != Family::kTopK && IsValid(ValuesCodec(codec));
  }
  if (codec.family == Family::kQuantize) {
    if (codec.bits != 8 && codec.bits != 4 && codec.bits != 2) return false;
  } else if (codec.bits != 0 || codec.stochastic) {
    return false;
  }
  if (!HasScales(codec.family)) return codec.block_size == 0;
  return codec.block_size > 0 && codec.block_size <= kMaxLength &&
         codec.block_size % kBlockMultiple == 0;
}

// Bytes of the payload of one segment; `kept` matters to top-k only. The codec is valid,
// 0 <= kept <= length <= kMaxLength.
GRADCOMP_HOST_DEVICE constexpr int64_t PayloadSize(const Codec& codec, int64_t length,
                                                   int64_t kept) {
  switch (codec.family) {
    case Family::kFloat32:
      return 4 * length;
    case Family::kFloat16:
    case Family::kBFloat16:
      return 2 * length;
    case Family::kFloat8E4M3:
    case Family::kFloat8E5M2:
    case Family::kQuantize:
    case Family::kSign:
      return 4 * CeilDiv(length, codec.block_size) + CeilDiv(length * BitsOfCode(codec), 8);
    case Family::kTopK:
      return kept == 0 ? 0 : EliasFanoSize(length, kept) + PayloadSize(ValuesCodec(codec), kept, 0);
  }
  return 0;
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_CODEC_H_
