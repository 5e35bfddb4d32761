#include "cpu/select.h"

#include <algorithm>

#include "core/float_bits.h"
#include "cpu/simd.h"

namespace gradcomp {
namespace {

// A histogram that stays in first-level cache.
constexpr int kBucketBits = 11;

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

}  // namespace

Rank KthLargest(const float* x, int64_t n, int64_t k) {
  // Narrows the range that holds the answer to one bucket of it, again and again. Candidates lie
  // close together: relative to their range, one bucket of the first round is nearly empty.
  Range range = MagnitudeRange(x, n);
  int64_t larger = 0;
  while (true) {
    const uint32_t width = range.high - range.low;
    int shift = 0;
    while (width >> shift >> kBucketBits != 0) ++shift;
    uint32_t histogram[1 << kBucketBits] = {};
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t offset = Magnitude(x[i]) - range.low;
      if (offset <= width) ++histogram[offset >> shift];
    }
    uint32_t bucket = width >> shift;
    while (larger + histogram[bucket] < k) larger += histogram[bucket--];
    range.low += bucket << shift;
    if (shift == 0) return {range.low, larger};
    range.high = std::min(range.high, range.low + (1u << shift) - 1);
  }
}

uint32_t KeepLargest(int64_t n, int64_t k, uint32_t* positions, float* values) {
  const Rank rank = KthLargest(values, n, k);
  int64_t ties = k - rank.larger;
  int64_t kept = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = Magnitude(values[i]);
    const bool tied = magnitude == rank.magnitude && ties > 0;
    positions[kept] = positions[i];
    values[kept] = values[i];
    kept += magnitude > rank.magnitude || tied;
    ties -= tied;
  }
  return rank.magnitude;
}

}  // namespace gradcomp
