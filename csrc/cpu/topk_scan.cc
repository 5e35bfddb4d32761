#include "cpu/topk_scan.h"

#include <algorithm>
#include <cstring>

#include "core/float_bits.h"
#include "cpu/simd.h"
#include "cpu/tile_v3.h"
#include "cpu/tile_v4.h"

namespace gradcomp {
namespace {

// Candidates written for a mask at least, be they there or not: a branch that depends on the data
// costs more. At 1 %, fewer than 3 in 64 are usual.
constexpr int kUnrolled = 3;

// Bit i: flags[i], each 0 or 1. The products move byte j's bit to bit 56 + j.
GRADCOMP_INLINE uint64_t MaskOfFlags(const uint8_t (&flags)[kScan]) {
  uint64_t mask = 0;
  for (int64_t i = 0; i < kScan; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, flags + i, 8);
    mask |= ((eight * 0x0102040810204080) >> 56) << i;
  }
  return mask;
}

// Appends the elements of a mask: corrected[i] is element begin + i.
GRADCOMP_INLINE void AppendMasked(uint64_t mask, int64_t begin, const Float32* corrected,
                                  Candidates* candidates) {
  uint32_t* __restrict positions = candidates->positions;
  float* __restrict values = candidates->values;
  int64_t count = candidates->count;
  const int64_t end = count + __builtin_popcountll(mask);
  do {
    for (int round = 0; round < kUnrolled; ++round) {
      const int i = __builtin_ctzll(mask | uint64_t{1} << 63);  // defined for no bits, too
      positions[count] = static_cast<uint32_t>(begin + i);
      values[count] = corrected[i].value;
      ++count;
      mask &= mask - 1;
    }
  } while (count < end);
  candidates->count = end;
}

#if defined(GRADCOMP_V4)
// Which of the lanes that are `there` reach the threshold.
GRADCOMP_V4_INLINE __mmask16 ChosenV4(__m512 x, __mmask16 there, uint32_t threshold) {
  return _mm512_mask_cmpge_epi32_mask(there, MagnitudeV4(x),
                                      _mm512_set1_epi32(static_cast<int32_t>(threshold)));
}

// Appends the chosen lanes, of which the first is element `at`.
GRADCOMP_V4_INLINE void AppendV4(__m512 x, __mmask16 chosen, int64_t at, Candidates* candidates) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i positions = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(at)), lanes);
  // To registers first: the form that writes to memory is ten times as slow on some processors.
  _mm512_storeu_si512(candidates->positions + candidates->count,
                      _mm512_maskz_compress_epi32(chosen, positions));
  _mm512_storeu_ps(candidates->values + candidates->count, _mm512_maskz_compress_ps(chosen, x));
  candidates->count += __builtin_popcount(chosen);
}

// kScan elements of a float32 gradient: each is written once, since stores are what takes longest.
template <bool kFew>
GRADCOMP_V4_INLINE void ScanFloatsV4(const Source& source, int64_t begin, uint32_t threshold,
                                     int64_t ahead, Candidates* candidates) {
  Float32 x[kScan];
  Float32* const corrected = source.new_residual ? source.new_residual + begin : x;
  uint64_t mask = 0;
  GRADCOMP_UNROLL(4)
  for (int64_t i = 0; i < kScan; i += kLanes) {
    AskForGradientV4(source, begin + i, ahead);
    const __m512 v = LoadCorrectedV4(source, begin + i);
    if (kFew || source.new_residual != nullptr) _mm512_storeu_ps(corrected + i, v);
    if (source.new_residual != nullptr) AskForResidualV4(source, begin + i, ahead);
    const __mmask16 chosen = ChosenV4(v, 0xffff, threshold);
    if constexpr (kFew) {
      mask |= static_cast<uint64_t>(chosen) << i;
    } else {
      AppendV4(v, chosen, begin + i, candidates);
    }
  }
  if constexpr (kFew) AppendMasked(mask, begin, corrected, candidates);
}

template <bool kFew>
GRADCOMP_V4 void ScanV4(const Source& source, int64_t first, int64_t n, uint32_t threshold,
                        Candidates* candidates) {
  const int64_t ahead = ElementsAhead();
  Candidates found = *candidates;
  for (int64_t begin = first; begin < first + n; begin += kScan) {
    const int64_t size = std::min(kScan, first + n - begin);
    if (size == kScan && source.dtype == DType::kFloat32) {
      ScanFloatsV4<kFew>(source, begin, threshold, ahead, &found);
      continue;
    }
    float x[kScan];
    LoadCorrected(source, begin, size, x);
    if (source.new_residual != nullptr) {
      std::memcpy(source.new_residual + begin, x, static_cast<size_t>(size) * sizeof(float));
    }
    for (int64_t i = 0; i < size; i += kLanes) {
      const __mmask16 there =
          size - i >= kLanes ? 0xffff : static_cast<__mmask16>((1 << (size - i)) - 1);
      const __m512 v = _mm512_maskz_loadu_ps(there, x + i);
      AppendV4(v, ChosenV4(v, there, threshold), begin + i, &found);
    }
  }
  *candidates = found;
}
#endif

#if defined(GRADCOMP_V3)
GRADCOMP_V3 void ScanV3(const Source& source, int64_t first, int64_t n, uint32_t threshold,
                        Candidates* candidates) {
  Candidates found = *candidates;
  // Magnitudes are compared as signed integers, which knows greater but not greater or equal.
  const __m256i below = _mm256_set1_epi32(static_cast<int32_t>(threshold) - 1);
  for (int64_t begin = first; begin < first + n; begin += kScan) {
    Float32 x[kScan];
    Float32* const corrected = source.new_residual ? source.new_residual + begin : x;
    uint64_t mask = 0;
    GRADCOMP_UNROLL(8)
    for (int64_t i = 0; i < kScan; i += kLanesV3) {
      const __m256 v = LoadCorrectedV3(source, begin + i);
      StoreV3(corrected + i, v);
      const __m256i chosen = _mm256_cmpgt_epi32(MagnitudeV3(v), below);
      const int bits = _mm256_movemask_ps(_mm256_castsi256_ps(chosen));
      mask |= static_cast<uint64_t>(static_cast<uint32_t>(bits)) << i;
    }
    AppendMasked(mask, begin, corrected, &found);
  }
  *candidates = found;
}
#endif

GRADCOMP_CLONES void ScanPlain(const Source& source, int64_t first, int64_t n, uint32_t threshold,
                               Candidates* candidates) {
  Candidates found = *candidates;
  // Few elements at a time, so that the processor computes on some while it waits for others.
  for (int64_t begin = first; begin < first + n; begin += kScan) {
    const int64_t size = std::min(kScan, first + n - begin);
    float x[kScan];
    LoadCorrected(source, begin, size, x);
    if (source.new_residual != nullptr) {
      Float32* __restrict corrected = source.new_residual + begin;
      for (int64_t i = 0; i < size; ++i) corrected[i].value = x[i];
    }
    alignas(8) uint8_t flags[kScan] = {};
    for (int64_t i = 0; i < size; ++i) {
      flags[i] = static_cast<int32_t>(Magnitude(x[i])) >= static_cast<int32_t>(threshold);
    }
    AppendMasked(MaskOfFlags(flags), begin, reinterpret_cast<const Float32*>(x), &found);
  }
  *candidates = found;
}

}  // namespace

void Scan(const Source& source, int64_t first, int64_t n, uint32_t threshold,
          [[maybe_unused]] bool few, Candidates* candidates) {
#if defined(GRADCOMP_V4)
  const auto scan = few ? ScanV4<true> : ScanV4<false>;
  if (HasV4()) return scan(source, first, n, threshold, candidates);
#endif
#if defined(GRADCOMP_V3)
  if (HasV3() && source.dtype == DType::kFloat32) {
    const int64_t whole = n / kScan * kScan;
    ScanV3(source, first, whole, threshold, candidates);
    return ScanPlain(source, first + whole, n - whole, threshold, candidates);
  }
#endif
  ScanPlain(source, first, n, threshold, candidates);
}

}  // namespace gradcomp
