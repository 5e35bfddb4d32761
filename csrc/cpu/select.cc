#include "cpu/select.h"

#include <algorithm>
#include <atomic>

#include "core/float_bits.h"
#include "cpu/simd.h"
#include "cpu/threads.h"

namespace gradcomp {
namespace {

// A histogram that stays in first-level cache, and one for few candidates, which are counted in
// less time than the buckets of the other are looked through.
constexpr int kBucketBits = 11;
constexpr int kFewBucketBits = 7;
constexpr int64_t kFew = 1 << 12;
constexpr int kBuckets = 1 << kBucketBits;
// Candidates from which on it pays to look at them on several threads.
constexpr int64_t kWorthSharing = 1 << 14;

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

GRADCOMP_CLONES int64_t CountEqual(const float* x, int64_t n, uint32_t magnitude) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += Magnitude(x[i]) == magnitude;
  return count;
}

int64_t Total(const Candidates* parts, int64_t num_parts) {
  int64_t total = 0;
  for (int64_t part = 0; part < num_parts; ++part) total += parts[part].count;
  return total;
}

// Calls work(part) for each, on several threads if there is much to do.
template <typename Work>
void ForEachPart(const Candidates* parts, int64_t num_parts, const Work& work) {
  if (Total(parts, num_parts) > kWorthSharing) return ParallelFor(num_parts, work);
  for (int64_t part = 0; part < num_parts; ++part) work(part);
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

// Keeps those above `magnitude` and the first `ties` of those equal to it.
void Keep(uint32_t magnitude, int64_t ties, Candidates* candidates) {
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

}  // namespace

Rank KthLargest(const Candidates* parts, int64_t num_parts, int64_t k) {
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
