#include "cpu/select.h"

#include <algorithm>

#include "core/float_bits.h"
#include "cpu/intrinsics_v4.h"
#include "cpu/rank.h"
#include "cpu/simd.h"

namespace gradcomp {
namespace {

GRADCOMP_CLONES int64_t CountEqual(const float* x, int64_t n, uint32_t magnitude) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += Magnitude(x[i]) == magnitude;
  return count;
}

// Keeps those above `magnitude` and the first `ties` of those equal to it.
void KeepPlain(uint32_t magnitude, int64_t ties, Candidates* candidates) {
  uint32_t* const positions = candidates->positions;
  float* const values = candidates->values;
  int64_t kept = 0;
  for (int64_t i = 0; i < candidates->count; ++i) {
    const uint32_t own = Magnitude(values[i]);
    const bool tied = own == magnitude && ties > 0;
    positions[kept] = positions[i];
    values[kept] = values[i];
    kept += own > magnitude || tied;
    ties -= tied;
  }
  candidates->count = kept;
}

#if defined(GRADCOMP_V4)
// Whole vectors are written, up to kSlack elements after the last that is kept.
GRADCOMP_V4 void KeepV4(uint32_t magnitude, int64_t ties, Candidates* candidates) {
  const __m512i bits = _mm512_set1_epi32(static_cast<int32_t>(kMagnitudeMask));
  const __m512i least = _mm512_set1_epi32(static_cast<int32_t>(magnitude));
  uint32_t* const positions = candidates->positions;
  float* const values = candidates->values;
  const int64_t count = candidates->count;
  int64_t kept = 0;
  for (int64_t i = 0; i < count; i += kSlack) {
    const __mmask16 there =
        count - i >= kSlack ? 0xffff : static_cast<__mmask16>((1 << (count - i)) - 1);
    const __m512 v = _mm512_maskz_loadu_ps(there, values + i);
    const __m512i position = _mm512_maskz_loadu_epi32(there, positions + i);
    const __m512i own = _mm512_and_epi32(_mm512_castps_si512(v), bits);
    __mmask16 tied = _mm512_mask_cmpeq_epi32_mask(there, own, least);
    if (tied != 0) {
      // The lowest `ties` of its bits.
      const uint32_t most = ties < kSlack ? (1u << ties) - 1 : 0xffff;
      tied = static_cast<__mmask16>(_pdep_u32(most, tied));
      ties -= __builtin_popcount(tied);
    }
    const __mmask16 chosen =
        static_cast<__mmask16>(_mm512_mask_cmpgt_epi32_mask(there, own, least) | tied);
    _mm512_storeu_si512(positions + kept, _mm512_maskz_compress_epi32(chosen, position));
    _mm512_storeu_ps(values + kept, _mm512_maskz_compress_ps(chosen, v));
    kept += __builtin_popcount(chosen);
  }
  candidates->count = kept;
}
#endif

void Keep(uint32_t magnitude, int64_t ties, Candidates* candidates) {
#if defined(GRADCOMP_V4)
  if (HasV4()) return KeepV4(magnitude, ties, candidates);
#endif
  KeepPlain(magnitude, ties, candidates);
}

}  // namespace

uint32_t KeepLargest(int64_t k, Candidates* candidates) {
  const Rank rank = KthLargest(candidates, 1, k);
  Keep(rank.magnitude, k - rank.larger, candidates);
  return rank.magnitude;
}

uint32_t KeepLargest(Candidates* parts, int64_t num_parts, int64_t k, Candidates* kept) {
  const Rank rank = KthLargest(parts, num_parts, k);
  ForEachPart(parts, num_parts,
              [&](int64_t part) { Keep(rank.magnitude, parts[part].count, parts + part); });
  // Ties beyond k are dropped, the last first.
  int64_t excess = Total(parts, num_parts) - k;
  for (int64_t part = num_parts - 1; excess > 0; --part) {
    Candidates* const own = parts + part;
    const int64_t ties = CountEqual(own->values, own->count, rank.magnitude);
    const int64_t dropped = std::min(ties, excess);
    if (dropped > 0) Keep(rank.magnitude, ties - dropped, own);
    excess -= dropped;
  }
  ForEachPart(parts, num_parts, [&](int64_t part) {
    const Candidates& own = parts[part];
    const int64_t before = Total(parts, part);
    std::copy_n(own.positions, own.count, kept->positions + before);
    std::copy_n(own.values, own.count, kept->values + before);
  });
  kept->count = k;
  return rank.magnitude;
}

}  // namespace gradcomp
