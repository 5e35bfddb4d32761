// Tiles in registers, for the highest instruction set: where memory is fast, passes over a tile in
// first-level cache take longer than it does.

#ifndef GRADCOMP_CPU_TILE_V4_H_
#define GRADCOMP_CPU_TILE_V4_H_

#include "cpu/intrinsics_v4.h"
#include "cpu/simd.h"

#if defined(GRADCOMP_V4)
#include <cstdint>

#include "core/float_bits.h"
#include "cpu/tile.h"

#define GRADCOMP_V4_INLINE GRADCOMP_V4 inline __attribute__((always_inline))

namespace gradcomp {

constexpr int64_t kLanes = 16;
constexpr int kVectors = kTile / kLanes;

// Canonical() of each lane.
GRADCOMP_V4_INLINE __m512 CanonicalV4(__m512 x) {
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_mov_ps(x, nan, _mm512_set1_ps(FloatFromBits(kNanBits)));
}

// Magnitude() of each lane.
GRADCOMP_V4_INLINE __m512i MagnitudeV4(__m512 x) {
  const __m512i bits = _mm512_set1_epi32(static_cast<int32_t>(kMagnitudeMask));
  return _mm512_and_epi32(_mm512_castps_si512(x), bits);
}

// A cache line that is written whole past the caches need not be read before. In pieces that any
// allocator's memory is aligned for.
template <bool kStreamed>
GRADCOMP_V4_INLINE void StoreV4(void* output, __m512 x) {
  if constexpr (!kStreamed) return _mm512_storeu_ps(output, x);
  float* const out = static_cast<float*>(output);
  _mm_stream_ps(out, _mm512_castps512_ps128(x));
  _mm_stream_ps(out + 4, _mm512_extractf32x4_ps(x, 1));
  _mm_stream_ps(out + 8, _mm512_extractf32x4_ps(x, 2));
  _mm_stream_ps(out + 12, _mm512_extractf32x4_ps(x, 3));
}

// Asks for what is `ahead` of a float32 gradient's elements from `at`, when these are read.
GRADCOMP_V4_INLINE void AskForGradientV4(const Source& source, int64_t at, int64_t ahead) {
  __builtin_prefetch(static_cast<const Float32*>(source.gradient) + at + ahead);
}

// The same of residuals, when new ones are written: memory answers few questions at a time.
GRADCOMP_V4_INLINE void AskForResidualV4(const Source& source, int64_t at, int64_t ahead) {
  const Float32* const old = source.residual ? source.residual : source.new_residual;
  __builtin_prefetch(old + at + ahead, 1);
}

// 16 elements of a float32 gradient and its residual, from `at`; NaN may be any.
GRADCOMP_V4_INLINE __m512 LoadSumV4(const Source& source, int64_t at) {
  const __m512 x = _mm512_loadu_ps(static_cast<const Float32*>(source.gradient) + at);
  if (source.residual == nullptr) return x;
  return _mm512_add_ps(x, _mm512_loadu_ps(source.residual + at));
}

// The same, corrected.
GRADCOMP_V4_INLINE __m512 LoadCorrectedV4(const Source& source, int64_t at) {
  return CanonicalV4(LoadSumV4(source, at));
}

}  // namespace gradcomp
#endif

#endif  // GRADCOMP_CPU_TILE_V4_H_
