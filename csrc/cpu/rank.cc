#include "cpu/rank.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "core/float_bits.h"
#include "cpu/intrinsics_v4.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace gradcomp {
namespace {

// A histogram that stays in first-level cache, and one for few candidates, which are counted in
// less time than the buckets of the other are looked through.
constexpr int kBucketBits = 11;
constexpr int kFewBucketBits = 7;
constexpr int64_t kFew = 1 << 12;
constexpr int kBuckets = 1 << kBucketBits;
// Candidates that are sampled of those that are worth it, and the part of all that may be in the
// range that they tell.
constexpr int64_t kSampled = 1 << 12;
constexpr int64_t kShareInside = 8;
// No magnitude.
constexpr uint32_t kNone = ~0u;

struct Range {
  uint32_t low;
  uint32_t high;
};

GRADCOMP_CLONES Range MagnitudeRange(const float* x, int64_t n) {
  int32_t low = static_cast<int32_t>(kMagnitudeMask);
  int32_t high = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t magnitude = static_cast<int32_t>(Magnitude(x[i]));
    low = std::min(low, magnitude);
    high = std::max(high, magnitude);
  }
  return {static_cast<uint32_t>(low), static_cast<uint32_t>(high)};
}

void Min(uint32_t value, std::atomic<uint32_t>* least) {
  uint32_t seen = *least;
  while (value < seen && !least->compare_exchange_weak(seen, value)) {
  }
}

void Max(uint32_t value, std::atomic<uint32_t>* largest) {
  uint32_t seen = *largest;
  while (value > seen && !largest->compare_exchange_weak(seen, value)) {
  }
}

Range MagnitudeRange(const Candidates* parts, int64_t num_parts) {
  std::atomic<uint32_t> low{kMagnitudeMask}, high{0};
  ForEachPart(parts, num_parts, [&](int64_t part) {
    const Range range = MagnitudeRange(parts[part].values, parts[part].count);
    Min(range.low, &low);
    Max(range.high, &high);
  });
  return {low, high};
}

// Adds those of x in [low, low + width] to the histogram.
void CountBuckets(const float* x, int64_t n, uint32_t low, uint32_t width, int shift,
                  uint32_t* histogram) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t offset = Magnitude(x[i]) - low;
    if (offset <= width) ++histogram[offset >> shift];
  }
}

void CountBuckets(const Candidates* parts, int64_t num_parts, uint32_t low, uint32_t width,
                  int shift, uint32_t (&histogram)[kBuckets]) {
  if (num_parts == 1) {
    return CountBuckets(parts->values, parts->count, low, width, shift, histogram);
  }
  std::atomic<uint32_t> sums[kBuckets] = {};
  ForEachPart(parts, num_parts, [&](int64_t part) {
    uint32_t own[kBuckets] = {};
    CountBuckets(parts[part].values, parts[part].count, low, width, shift, own);
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      if (own[bucket] != 0) sums[bucket].fetch_add(own[bucket], std::memory_order_relaxed);
    }
  });
  for (int bucket = 0; bucket < kBuckets; ++bucket) histogram[bucket] = sums[bucket];
}

// Of few candidates, or of many.
Rank KthByHistogram(const Candidates* parts, int64_t num_parts, int64_t k) {
  // Narrows the range that holds the answer to one bucket of it, again and again. Candidates lie
  // close together: relative to their range, one bucket of the first round is nearly empty.
  Range range = MagnitudeRange(parts, num_parts);
  const int bucket_bits = Total(parts, num_parts) <= kFew ? kFewBucketBits : kBucketBits;
  uint32_t histogram[kBuckets];
  int64_t larger = 0;
  while (true) {
    const uint32_t width = range.high - range.low;
    int shift = 0;
    while (width >> shift >> bucket_bits != 0) ++shift;
    std::fill_n(histogram, (width >> shift) + 1, 0u);
    CountBuckets(parts, num_parts, range.low, width, shift, histogram);
    uint32_t bucket = width >> shift;
    while (larger + histogram[bucket] < k) larger += histogram[bucket--];
    range.low += bucket << shift;
    if (shift == 0) return {range.low, larger};
    range.high = std::min(range.high, range.low + (1u << shift) - 1);
  }
}

struct Split {
  int64_t above;   // the range
  int64_t inside;  // of it, -1 if more than there is room for
};

// Counts values above the range, and appends those inside to `inside`, which has room for kSlack
// more than `room`.
Split SplitPlain(const float* x, int64_t n, Range range, float* inside, int64_t room) {
  Split split = {0, 0};
  for (int64_t begin = 0; begin < n; begin += kSlack) {
    if (split.inside > room) return {0, -1};
    for (int64_t i = begin; i < std::min(begin + kSlack, n); ++i) {
      const uint32_t magnitude = Magnitude(x[i]);
      inside[split.inside] = x[i];
      split.above += magnitude > range.high;
      split.inside += magnitude >= range.low && magnitude <= range.high;
    }
  }
  return split.inside > room ? Split{0, -1} : split;
}

#if defined(GRADCOMP_V4)
GRADCOMP_V4 Split SplitV4(const float* x, int64_t n, Range range, float* inside, int64_t room) {
  const __m512i bits = _mm512_set1_epi32(static_cast<int32_t>(kMagnitudeMask));
  const __m512i low = _mm512_set1_epi32(static_cast<int32_t>(range.low));
  const __m512i high = _mm512_set1_epi32(static_cast<int32_t>(range.high));
  Split split = {0, 0};
  for (int64_t i = 0; i < n; i += kSlack) {
    if (split.inside > room) return {0, -1};
    const __mmask16 there = n - i >= kSlack ? 0xffff : static_cast<__mmask16>((1 << (n - i)) - 1);
    const __m512 v = _mm512_maskz_loadu_ps(there, x + i);
    const __m512i magnitude = _mm512_and_epi32(_mm512_castps_si512(v), bits);
    const __mmask16 above = _mm512_mask_cmpgt_epi32_mask(there, magnitude, high);
    const __mmask16 least = _mm512_mask_cmpge_epi32_mask(there, magnitude, low);
    const __mmask16 chosen = static_cast<__mmask16>(least & ~above);
    _mm512_storeu_ps(inside + split.inside, _mm512_maskz_compress_ps(chosen, v));
    split.above += __builtin_popcount(above);
    split.inside += __builtin_popcount(chosen);
  }
  return split.inside > room ? Split{0, -1} : split;
}
#endif

Split SplitByRange(const float* x, int64_t n, Range range, float* inside, int64_t room) {
#if defined(GRADCOMP_V4)
  if (HasV4()) return SplitV4(x, n, range, inside, room);
#endif
  return SplitPlain(x, n, range, inside, room);
}

// A range in which the k-th largest probably is: what a sample of every so many tells.
Range LikelyRange(const Candidates* parts, int64_t num_parts, int64_t k) {
  const int64_t total = Total(parts, num_parts);
  const int64_t step = total / kSampled;
  float sample[2 * kSampled];
  int64_t size = 0;
  for (int64_t part = 0; part < num_parts; ++part) {
    for (int64_t i = 0; i < parts[part].count && size < 2 * kSampled; i += step) {
      sample[size++] = parts[part].values[i];
    }
  }
  const double share = static_cast<double>(k) / static_cast<double>(total);
  const double expected = share * static_cast<double>(size);
  // Four standard deviations of the sample's count, and some for the smallest.
  const double off = 4 * std::sqrt(expected * (1 - share)) + 4;
  const Candidates only = {nullptr, sample, size, size};
  const int64_t first = static_cast<int64_t>(expected - off);
  const int64_t last = static_cast<int64_t>(expected + off);
  return {last <= size ? KthByHistogram(&only, 1, last).magnitude : 0,
          first >= 1 ? KthByHistogram(&only, 1, first).magnitude : kMagnitudeMask};
}

// The k-th largest of many candidates, if it is where a sample says; else magnitude kNone.
Rank KthBySample(const Candidates* parts, int64_t num_parts, int64_t k) {
  const Range range = LikelyRange(parts, num_parts, k);
  const Scratch<float> memory(Total(parts, num_parts) / kShareInside + 2 * kSlack * num_parts);
  const Scratch<Candidates> inside(num_parts);
  std::atomic<int64_t> above{0};
  std::atomic<bool> fits{memory.status().ok() && inside.status().ok()};
  if (!fits) return {kNone, 0};
  for (int64_t part = 0, at = 0; part < num_parts; ++part) {
    const int64_t room = parts[part].count / kShareInside;
    inside.get()[part] = {nullptr, memory.get() + at, room, 0};
    at += room + 2 * kSlack;
  }
  ForEachPart(parts, num_parts, [&](int64_t part) {
    Candidates* const own = inside.get() + part;
    const Split split =
        SplitByRange(parts[part].values, parts[part].count, range, own->values, own->capacity);
    if (split.inside < 0) fits = false;
    own->count = std::max<int64_t>(split.inside, 0);
    above += split.above;
  });
  if (!fits || above >= k || above + Total(inside.get(), num_parts) < k) return {kNone, 0};
  const Rank rank = KthByHistogram(inside.get(), num_parts, k - above);
  return {rank.magnitude, rank.larger + above};
}

}  // namespace

Rank KthLargest(const Candidates* parts, int64_t num_parts, int64_t k) {
  if (Total(parts, num_parts) > kWorthSharing) {
    const Rank rank = KthBySample(parts, num_parts, k);
    if (rank.magnitude != kNone) return rank;
  }
  return KthByHistogram(parts, num_parts, k);
}

}  // namespace gradcomp
