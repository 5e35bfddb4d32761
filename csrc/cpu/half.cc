#include "cpu/half.h"

#include "core/float_bits.h"
#include "cpu/simd.h"

#if defined(GRADCOMP_V3)
#include <immintrin.h>
#endif

namespace gradcomp {
namespace {

GRADCOMP_INLINE void ConvertByBits(const float* x, int64_t first, int64_t n, Float16* half) {
  for (int64_t i = first; i < n; ++i) half[i].bits = HalfFromFloat(x[i]);
}

// Without the instruction, the dozen integer operations an element take 1.3 (AVX2) to 2.5 (SSE2)
// times as long as memory does.
#if defined(GRADCOMP_V3)
GRADCOMP_V3 void ConvertByInstruction(const float* x, int64_t n, Float16* half) {
  const __m256 nan = _mm256_set1_ps(FloatFromBits(kNanBits));
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    const __m256 canonical = _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m128i h = _mm256_cvtps_ph(canonical, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(half + i), h);
  }
  ConvertByBits(x, i, n, half);
}
#endif

}  // namespace

void HalfFromFloats(const float* x, int64_t n, Float16* half) {
#if defined(GRADCOMP_V3)
  if (HasV3()) return ConvertByInstruction(x, n, half);
#endif
  ConvertByBits(x, 0, n, half);
}

}  // namespace gradcomp
