// Vectors of eight, for processors with AVX2: where memory is fast, passes over a tile in
// first-level cache take longer than it does.

#ifndef GRADCOMP_CPU_TILE_V3_H_
#define GRADCOMP_CPU_TILE_V3_H_

#include "cpu/simd.h"

#if defined(GRADCOMP_V3)
#include <immintrin.h>

#include <cstdint>

#include "core/float_bits.h"
#include "cpu/tile.h"

#define GRADCOMP_V3_INLINE GRADCOMP_V3 inline __attribute__((always_inline))

namespace gradcomp {

constexpr int64_t kLanesV3 = 8;

// Canonical() of each lane.
GRADCOMP_V3_INLINE __m256 CanonicalV3(__m256 x) {
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_blendv_ps(x, _mm256_set1_ps(FloatFromBits(kNanBits)), nan);
}

// Magnitude() of each lane.
GRADCOMP_V3_INLINE __m256i MagnitudeV3(__m256 x) {
  const __m256i bits = _mm256_set1_epi32(static_cast<int32_t>(kMagnitudeMask));
  return _mm256_and_si256(_mm256_castps_si256(x), bits);
}

// Whether any of these magnitudes is that of infinity or of NaN.
GRADCOMP_V3_INLINE bool AnyNotFiniteV3(__m256i magnitudes) {
  const __m256i finite = _mm256_set1_epi32(static_cast<int32_t>(kInfinityBits) - 1);
  return _mm256_movemask_epi8(_mm256_cmpgt_epi32(magnitudes, finite)) != 0;
}

// 8 floats, wherever they are.
GRADCOMP_V3_INLINE __m256 LoadV3(const void* from) {
  return _mm256_loadu_ps(static_cast<const float*>(from));
}

GRADCOMP_V3_INLINE void StoreV3(void* to, __m256 x) {
  _mm256_storeu_ps(static_cast<float*>(to), x);
}

// A cache line that is written whole past the caches need not be read before. In pieces that any
// allocator's memory is aligned for.
GRADCOMP_V3_INLINE void StreamV3(void* to, __m256 x) {
  float* const out = static_cast<float*>(to);
  _mm_stream_ps(out, _mm256_castps256_ps128(x));
  _mm_stream_ps(out + 4, _mm256_extractf128_ps(x, 1));
}

// 8 elements of a float32 gradient and its residual, from `at`; NaN may be any.
GRADCOMP_V3_INLINE __m256 LoadSumV3(const Source& source, int64_t at) {
  const __m256 x = LoadV3(static_cast<const Float32*>(source.gradient) + at);
  if (source.residual == nullptr) return x;
  return _mm256_add_ps(x, LoadV3(source.residual + at));
}

// The same, corrected.
GRADCOMP_V3_INLINE __m256 LoadCorrectedV3(const Source& source, int64_t at) {
  return CanonicalV3(LoadSumV3(source, at));
}

// The largest of eight integers that aren't negative.
GRADCOMP_V3_INLINE uint32_t LargestV3(__m256i x) {
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(half));
}

}  // namespace gradcomp
#endif

#endif  // GRADCOMP_CPU_TILE_V3_H_
