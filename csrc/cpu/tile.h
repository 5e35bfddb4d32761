// Kernels work on tiles: short float32 arrays on the stack, in first-level cache, filled from a
// tensor of any dtype or written to one. Everything here is inlined into GRADCOMP_CLONES functions.

#ifndef GRADCOMP_CPU_TILE_H_
#define GRADCOMP_CPU_TILE_H_

#include <algorithm>
#include <cstdint>

#include "core/codec.h"
#include "core/float_bits.h"
#include "cpu/elements.h"
#include "cpu/half.h"
#include "cpu/simd.h"

namespace gradcomp {

// Elements of a tile; a multiple of kRandomGroup.
constexpr int64_t kTile = 256;

// Elements to encode: a gradient, its residual or null, and where what is lost goes or null.
// `new_residual` may equal `residual` or a float32 `gradient`. Of a `large` bucket no payload is in
// cache when it is next used, so that it may be written past the caches.
struct Source {
  const void* gradient;
  DType dtype;
  const Float32* residual;
  Float32* new_residual;
  bool large = false;
};

// How many elements ahead of those at hand a kernel asks for: a core of Intel's reads up to a third
// faster so. 0, which asks for nothing new, on others, where it has been seen to take longer. Not a
// power of two: lines 4 KiB apart are in each other's way in first-level cache.
inline int64_t ElementsAhead() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") ? 640 : 0;
#else
  return 0;
#endif
}

// Where decoded sums go, after scaling: past the caches if `streamed`, where that pays.
struct Sink {
  void* output;
  DType dtype;
  float scale;
  bool streamed;
};

// Whether the output may be written past the caches, in pieces of 16 bytes.
inline bool CanStream(const Sink& sink) {
  return sink.streamed && reinterpret_cast<uintptr_t>(sink.output) % 16 == 0;
}

// The same of a payload.
inline bool CanStream(const Source& source, const void* payload) {
  return source.large && reinterpret_cast<uintptr_t>(payload) % 16 == 0;
}

GRADCOMP_INLINE Source Advance(const Source& source, int64_t elements) {
  return {static_cast<const uint8_t*>(source.gradient) + elements * SizeOf(source.dtype),
          source.dtype, source.residual ? source.residual + elements : nullptr,
          source.new_residual ? source.new_residual + elements : nullptr, source.large};
}

GRADCOMP_INLINE Sink Advance(const Sink& sink, int64_t elements) {
  return {static_cast<uint8_t*>(sink.output) + elements * SizeOf(sink.dtype), sink.dtype,
          sink.scale, sink.streamed};
}

GRADCOMP_INLINE uint32_t MaxMagnitude(const float* x, int64_t n) {
  int32_t largest = 0;  // signed, because SSE2 compares only these
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, static_cast<int32_t>(Magnitude(x[i])));
  }
  return static_cast<uint32_t>(largest);
}

// Which of `count` pieces comes at a turn: one of each half after the other, as one core reads two
// streams faster than one.
GRADCOMP_INLINE int64_t InTwoStreams(int64_t turn, int64_t count) {
  return turn % 2 == 0 ? turn / 2 : (count + 1) / 2 + turn / 2;
}

template <typename Element>
GRADCOMP_INLINE uint32_t LoadCorrected(const void* gradient, const Float32* __restrict residual,
                                       int64_t n, float* __restrict x) {
  const Element* __restrict g = static_cast<const Element*>(gradient);
  int32_t largest = 0;  // signed, because SSE2 compares only these
  if (residual == nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      x[i] = Canonical(Widen(g[i]));
      largest = std::max(largest, static_cast<int32_t>(Magnitude(x[i])));
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      x[i] = Canonical(Widen(g[i]) + residual[i].value);
      largest = std::max(largest, static_cast<int32_t>(Magnitude(x[i])));
    }
  }
  return static_cast<uint32_t>(largest);
}

// Halfs are converted in a pass of its own, by instruction.
template <>
GRADCOMP_INLINE uint32_t LoadCorrected<Float16>(const void* gradient,
                                                const Float32* __restrict residual, int64_t n,
                                                float* __restrict x) {
  FloatsFromHalf(static_cast<const Float16*>(gradient), n, x);
  if (residual != nullptr) {
    for (int64_t i = 0; i < n; ++i) x[i] = Canonical(x[i] + residual[i].value);
  }
  return MaxMagnitude(x, n);
}

// x[i] = gradient + residual at element first + i, for 0 <= i < n. Returns the largest magnitude.
GRADCOMP_INLINE uint32_t LoadCorrected(const Source& source, int64_t first, int64_t n, float* x) {
  const Source tile = Advance(source, first);
  switch (tile.dtype) {
    case DType::kFloat32:
      return LoadCorrected<Float32>(tile.gradient, tile.residual, n, x);
    case DType::kFloat16:
      return LoadCorrected<Float16>(tile.gradient, tile.residual, n, x);
    case DType::kBFloat16:
      return LoadCorrected<BFloat16>(tile.gradient, tile.residual, n, x);
  }
  return 0;
}

// Writes sum[i] * scale to output first + i, for 0 <= i < n; clobbers sum. Says whether all of it
// is finite.
GRADCOMP_INLINE bool StoreScaled(float* __restrict sum, int64_t n, const Sink& sink,
                                 int64_t first) {
  void* output = Advance(sink, first).output;
  const float scale = sink.scale;
  if (sink.dtype == DType::kFloat32) {
    Float32* __restrict out = static_cast<Float32*>(output);
    int32_t largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float value = Canonical(sum[i] * scale);
      out[i].value = value;
      largest = std::max(largest, static_cast<int32_t>(Magnitude(value)));
    }
    return largest < static_cast<int32_t>(kInfinityBits);
  }
  for (int64_t i = 0; i < n; ++i) sum[i] = Canonical(sum[i] * scale);
  // Bits of both narrow types, to look at them after the conversion.
  Float16* __restrict out = static_cast<Float16*>(output);
  const bool is_half = sink.dtype == DType::kFloat16;
  if (is_half) {
    HalfFromFloats(sum, n, out);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i].bits = BFloat16FromFloat(sum[i]);
  }
  int16_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, static_cast<int16_t>(out[i].bits & 0x7fff));
  }
  return largest < (is_half ? kHalfInfinityBits : kBFloat16InfinityBits);
}

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_TILE_H_
