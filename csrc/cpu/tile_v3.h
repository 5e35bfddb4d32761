// Vectors of eight, for processors with AVX2. Plain loops do as well nearly everywhere, but not
// where the bits of comparisons are wanted.

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

// 8 floats, wherever they are.
GRADCOMP_V3_INLINE __m256 LoadV3(const void* from) {
  return _mm256_loadu_ps(static_cast<const float*>(from));
}

GRADCOMP_V3_INLINE void StoreV3(void* to, __m256 x) {
  _mm256_storeu_ps(static_cast<float*>(to), x);
}

// 8 elements of a float32 gradient and its residual, from `at`, corrected.
GRADCOMP_V3_INLINE __m256 LoadCorrectedV3(const Source& source, int64_t at) {
  const __m256 x = LoadV3(static_cast<const Float32*>(source.gradient) + at);
  if (source.residual == nullptr) return CanonicalV3(x);
  return CanonicalV3(_mm256_add_ps(x, LoadV3(source.residual + at)));
}

}  // namespace gradcomp
#endif

#endif  // GRADCOMP_CPU_TILE_V3_H_
