#include "cpu/compact.h"

#include <algorithm>

#include "core/float_bits.h"
#include "cpu/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gradcomp {
namespace {

constexpr int64_t kMaskBits = 64;

// Compilers do not turn comparisons into a bit mask, so each instruction set has its own loop:
// bit i of masks[w] is Magnitude(x[64 * w + i]) >= threshold, for 0 <= w < words.
#if defined(GRADCOMP_DISPATCH) || !defined(__AVX2__)
#if defined(GRADCOMP_DISPATCH)
__attribute__((target("default")))
#endif
void FillMasks(const float* x, int64_t words, uint32_t threshold, uint64_t* masks) {
  for (int64_t word = 0; word < words; ++word, x += kMaskBits) {
    uint64_t mask = 0;
    // Most words of a sparse selection are zero, which the vectorised maximum tells sooner.
    if (MaxMagnitude(x, kMaskBits) >= threshold) {
      for (int64_t i = 0; i < kMaskBits; ++i) {
        mask |= static_cast<uint64_t>(Magnitude(x[i]) >= threshold) << i;
      }
    }
    masks[word] = mask;
  }
}
#endif

#if defined(GRADCOMP_DISPATCH) || (defined(__AVX2__) && !defined(__AVX512F__))
#if defined(GRADCOMP_DISPATCH)
__attribute__((target("arch=x86-64-v3")))
#endif
void FillMasks(const float* x, int64_t words, uint32_t threshold, uint64_t* masks) {
  // Signed comparison is right for magnitudes, which have no sign bit; a threshold is one of them.
  const __m256i below = _mm256_set1_epi32(static_cast<int32_t>(threshold) - 1);
  const __m256i magnitude_mask = _mm256_set1_epi32(static_cast<int32_t>(kMagnitudeMask));
  for (int64_t word = 0; word < words; ++word, x += kMaskBits) {
    uint64_t mask = 0;
    for (int64_t i = 0; i < kMaskBits; i += 8) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
      const __m256i chosen = _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude_mask), below);
      const uint32_t eight = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(chosen)));
      mask |= static_cast<uint64_t>(eight) << i;
    }
    masks[word] = mask;
  }
}
#endif

#if defined(GRADCOMP_DISPATCH) || defined(__AVX512F__)
#if defined(GRADCOMP_DISPATCH)
__attribute__((target("arch=x86-64-v4")))
#endif
void FillMasks(const float* x, int64_t words, uint32_t threshold, uint64_t* masks) {
  const __m512i least = _mm512_set1_epi32(static_cast<int32_t>(threshold));
  const __m512i magnitude_mask = _mm512_set1_epi32(static_cast<int32_t>(kMagnitudeMask));
  for (int64_t word = 0; word < words; ++word, x += kMaskBits) {
    uint64_t mask = 0;
    for (int64_t i = 0; i < kMaskBits; i += 16) {
      const __m512i bits = _mm512_loadu_si512(x + i);
      const uint64_t sixteen =
          _mm512_cmpge_epu32_mask(_mm512_and_si512(bits, magnitude_mask), least);
      mask |= sixteen << i;
    }
    masks[word] = mask;
  }
}
#endif

}  // namespace

int64_t Compact(const float* x, int64_t n, uint32_t threshold, uint32_t base, uint32_t* positions,
                float* values) {
  int64_t count = 0;
  for (int64_t first = 0; first < n; first += kTile) {
    const int64_t size = std::min(kTile, n - first);
    const int64_t full = size / kMaskBits;
    uint64_t masks[kTile / kMaskBits];
    FillMasks(x + first, full, threshold, masks);
    if (size % kMaskBits != 0) {
      uint64_t mask = 0;
      for (int64_t i = full * kMaskBits; i < size; ++i) {
        mask |= static_cast<uint64_t>(Magnitude(x[first + i]) >= threshold) << (i % kMaskBits);
      }
      masks[full] = mask;
    }
    for (int64_t word = 0; word * kMaskBits < size; ++word) {
      for (uint64_t mask = masks[word]; mask != 0; mask &= mask - 1) {
        const int64_t i = first + word * kMaskBits + __builtin_ctzll(mask);
        positions[count] = base + static_cast<uint32_t>(i);
        values[count] = x[i];
        ++count;
      }
    }
  }
  return count;
}

}  // namespace gradcomp
