#include "cpu/select.h"

#include <cstring>

#include "core/float_bits.h"

namespace gradcomp {
namespace {

// A magnitude's 31 bits in digits of 11, 10 and 10, the highest first.
struct Digit {
  int shift;
  int bits;
};
constexpr Digit kDigits[] = {{20, 11}, {10, 10}, {0, 10}};

}  // namespace

Rank KthLargest(const float* x, int64_t n, int64_t k) {
  uint32_t prefix = 0;  // the digits of the answer found so far
  int64_t larger = 0;
  for (const Digit& digit : kDigits) {
    const uint32_t buckets = 1u << digit.bits;
    int64_t histogram[1 << kDigits[0].bits] = {};
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t magnitude = Magnitude(x[i]);
      // In two shifts, because the first digit leaves 31 bits to shift out.
      if (magnitude >> digit.shift >> digit.bits != prefix) continue;
      ++histogram[(magnitude >> digit.shift) & (buckets - 1)];
    }
    uint32_t bucket = buckets - 1;
    while (larger + histogram[bucket] < k) larger += histogram[bucket--];
    prefix = prefix << digit.bits | bucket;
  }
  return {prefix, larger};
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
