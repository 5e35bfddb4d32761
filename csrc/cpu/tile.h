// Kernels work on tiles: short float32 arrays on the stack, in first-level cache, filled from a
// tensor of any dtype or written to one. Everything here is inlined into GRADCOMP_CLONES functions.

#ifndef GRADCOMP_CPU_TILE_H_
#define GRADCOMP_CPU_TILE_H_

#include <algorithm>
#include <cstdint>

#include "core/codec.h"
#include "core/float_bits.h"
#include "cpu/half.h"
#include "cpu/simd.h"

namespace gradcomp {

// Elements of a tile; a multiple of kRandomGroup.
constexpr int64_t kTile = 1024;

// Elements to encode: a gradient, its residual or null, and where what is lost goes or null.
// `new_residual` may equal `residual`.
struct Source {
  const void* gradient;
  DType dtype;
  const UnalignedFloat* residual;
  UnalignedFloat* new_residual;
};

// Where decoded sums go, after scaling.
struct Sink {
  void* output;
  DType dtype;
  float scale;
};

GRADCOMP_INLINE int64_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

GRADCOMP_INLINE Source Advance(const Source& source, int64_t elements) {
  return {static_cast<const uint8_t*>(source.gradient) + elements * SizeOf(source.dtype),
          source.dtype, source.residual ? source.residual + elements : nullptr,
          source.new_residual ? source.new_residual + elements : nullptr};
}

GRADCOMP_INLINE Sink Advance(const Sink& sink, int64_t elements) {
  return {static_cast<uint8_t*>(sink.output) + elements * SizeOf(sink.dtype), sink.dtype,
          sink.scale};
}

// The exact float32 values of elements of each dtype.
GRADCOMP_INLINE float Widen(const UnalignedFloat* data, int64_t i) { return data[i]; }
struct HalfBits {
  UnalignedU16 bits;
};
struct BFloat16Bits {
  UnalignedU16 bits;
};
GRADCOMP_INLINE float Widen(const HalfBits* data, int64_t i) { return FloatFromHalf(data[i].bits); }
GRADCOMP_INLINE float Widen(const BFloat16Bits* data, int64_t i) {
  return FloatFromBFloat16(data[i].bits);
}

template <typename T>
GRADCOMP_INLINE void LoadCorrected(const T* gradient, const UnalignedFloat* residual, int64_t n,
                                   float* x) {
  if (residual == nullptr) {
    for (int64_t i = 0; i < n; ++i) x[i] = Canonical(Widen(gradient, i));
  } else {
    for (int64_t i = 0; i < n; ++i) x[i] = Canonical(Widen(gradient, i) + residual[i]);
  }
}

// x[i] = gradient + residual at element first + i, for 0 <= i < n.
GRADCOMP_INLINE void LoadCorrected(const Source& source, int64_t first, int64_t n, float* x) {
  const Source tile = Advance(source, first);
  PrefetchAhead(tile.gradient, n * SizeOf(tile.dtype));
  if (tile.residual) PrefetchAhead(tile.residual, n * 4);
  switch (tile.dtype) {
    case DType::kFloat32:
      return LoadCorrected(static_cast<const UnalignedFloat*>(tile.gradient), tile.residual, n, x);
    case DType::kFloat16:
      return LoadCorrected(static_cast<const HalfBits*>(tile.gradient), tile.residual, n, x);
    case DType::kBFloat16:
      return LoadCorrected(static_cast<const BFloat16Bits*>(tile.gradient), tile.residual, n, x);
  }
}

GRADCOMP_INLINE uint32_t MaxMagnitude(const float* x, int64_t n) {
  int32_t largest = 0;  // signed, because SSE2 compares only these
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, static_cast<int32_t>(Magnitude(x[i])));
  }
  return static_cast<uint32_t>(largest);
}

// Writes sum[i] * scale to output first + i, for 0 <= i < n; clobbers sum. Says whether all of it
// is finite.
GRADCOMP_INLINE bool StoreScaled(float* sum, int64_t n, const Sink& sink, int64_t first) {
  for (int64_t i = 0; i < n; ++i) sum[i] = Canonical(sum[i] * sink.scale);
  void* output = Advance(sink, first).output;
  if (sink.dtype == DType::kFloat32) {
    std::copy_n(sum, n, static_cast<UnalignedFloat*>(output));
    return MaxMagnitude(sum, n) < kInfinityBits;
  }
  UnalignedU16* narrow = static_cast<UnalignedU16*>(output);
  const bool is_half = sink.dtype == DType::kFloat16;
  if (is_half) {
    HalfFromFloats(sum, n, narrow);
  } else {
    for (int64_t i = 0; i < n; ++i) narrow[i] = BFloat16FromFloat(sum[i]);
  }
  uint16_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max<uint16_t>(largest, narrow[i] & 0x7fff);
  return largest < (is_half ? kHalfInfinityBits : kBFloat16InfinityBits);
}

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_TILE_H_
