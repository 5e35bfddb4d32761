// Exact top-k in one pass over memory: a sample suggests a threshold that a little more than k
// elements pass; those that do are collected, and an exact selection among them ends it.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/elias_fano.h"
#include "cpu/block.h"
#include "cpu/elias_fano.h"
#include "cpu/scratch.h"
#include "cpu/select.h"
#include "cpu/simd.h"
#include "cpu/topk.h"

namespace gradcomp {
namespace {

constexpr int64_t kLine = kCacheLine / static_cast<int64_t>(sizeof(float));
// Below it, sampling costs more than the candidates that it saves.
constexpr int64_t kSampledLength = 1 << 17;
// Elements between two looks at how full the candidates are.
constexpr int64_t kStride = 4096;
// Elements scanned at a time: one word of mask bits.
constexpr int64_t kScan = 64;
// Candidates written for a mask at least, be they there or not: a branch that depends on the data
// costs more. At 1 %, fewer than 3 in 64 are usual.
constexpr int kUnrolled = 3;
// Thresholds that all elements reach, and none.
constexpr uint32_t kAnyMagnitude = 0;
constexpr uint32_t kNoMagnitude = kMagnitudeMask;

struct Candidates {
  uint32_t* positions;
  float* values;
  int64_t capacity;
  int64_t count;
};

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

// Corrects elements [first, first + n) into the new residual, and appends those that reach the
// threshold to the candidates, which have room for n + kUnrolled more.
GRADCOMP_CLONES void Scan(const Source& source, int64_t first, int64_t n, uint32_t threshold,
                          Candidates* candidates) {
  uint32_t* __restrict positions = candidates->positions;
  float* __restrict values = candidates->values;
  int64_t count = candidates->count;
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
    uint64_t mask = MaskOfFlags(flags);
    const int64_t end = count + __builtin_popcountll(mask);
    do {
      for (int round = 0; round < kUnrolled; ++round) {
        const int i = __builtin_ctzll(mask | uint64_t{1} << 63);  // defined for no bits, too
        positions[count] = static_cast<uint32_t>(begin + i);
        values[count] = x[i];
        ++count;
        mask &= mask - 1;
      }
    } while (count < end);
    count = end;
  }
  candidates->count = count;
}

// A magnitude that probably a little more than k of n elements reach. Reads whole cache lines,
// because that is what memory delivers.
GRADCOMP_CLONES Status SampleThreshold(const Source& source, int64_t n, int64_t k,
                                       uint32_t* threshold) {
  const int64_t lines = k < n / 500 ? 8192 : 4096;
  const Scratch<float> sample(lines * kLine);
  if (!sample.status().ok()) return sample.status();
  // A fixed sequence: equal inputs take equal time, and the result does not depend on it.
  uint64_t state = 1;
  for (int64_t line = 0; line < lines; ++line) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t random = state >> 32;
    const int64_t chosen = static_cast<int64_t>((random * static_cast<uint64_t>(n / kLine)) >> 32);
    LoadCorrected(source, chosen * kLine, kLine, sample.get() + line * kLine);
  }
  const double expected =
      static_cast<double>(k) / static_cast<double>(n) * static_cast<double>(lines * kLine);
  // Four standard deviations of the sample's count, and some for the smallest.
  const int64_t rank = static_cast<int64_t>(expected + 4 * std::sqrt(expected) + 4);
  *threshold = rank < lines * kLine ? KthLargest(sample.get(), lines * kLine, rank).magnitude
                                    : kAnyMagnitude;
  return {};
}

// Collects all elements that reach the threshold or, where these are more than fit, the k largest
// of those so far and all later ones that may still replace one.
void Collect(const Source& source, int64_t n, int64_t k, uint32_t threshold,
             Candidates* candidates) {
  candidates->count = 0;
  for (int64_t first = 0; first < n; first += kStride) {
    const int64_t size = std::min(kStride, n - first);
    if (candidates->count + size > candidates->capacity) {
      // A later element of the same magnitude would lose the tie.
      threshold = KeepLargest(candidates->count, k, candidates->positions, candidates->values) + 1;
      candidates->count = k;
    }
    Scan(source, first, size, threshold, candidates);
  }
}

}  // namespace

Status TopKEncode(const Codec& codec, const Source& source, int64_t n, int64_t k,
                  const RandomStream& stream, uint8_t* payload) {
  const int64_t capacity = k + k / 4 + kStride;
  // One allocation, because malloc tends to keep the memory of one for the next call.
  const Scratch<uint32_t> scratch(2 * (capacity + kUnrolled));
  if (!scratch.status().ok()) return scratch.status();
  Candidates candidates = {
      scratch.get(), reinterpret_cast<float*>(scratch.get() + capacity + kUnrolled), capacity, 0};
  if (k == 0) {
    Scan(source, 0, n, kNoMagnitude, &candidates);
    return {};
  }

  uint32_t threshold = kAnyMagnitude;
  if (n >= kSampledLength) {
    if (Status status = SampleThreshold(source, n, k, &threshold); !status.ok()) return status;
  }
  Collect(source, n, k, threshold, &candidates);
  if (candidates.count < k) {
    // The sample was misleading. The residual may be overwritten, but then holds the sums.
    const Source again = source.new_residual
                             ? Source{source.new_residual, DType::kFloat32, nullptr, nullptr}
                             : source;
    Collect(again, n, k, kAnyMagnitude, &candidates);
  }
  const uint32_t smallest =
      KeepLargest(candidates.count, k, candidates.positions, candidates.values);

  EliasFanoEncode(candidates.positions, k, n, payload);
  // What the values' codec loses of them replaces them.
  Float32* lost = source.new_residual ? reinterpret_cast<Float32*>(candidates.values) : nullptr;
  BlockEncode(ValuesCodec(codec), {candidates.values, DType::kFloat32, nullptr, lost}, k, 0, k, 0,
              stream, payload + EliasFanoSize(n, k));
  for (int64_t i = 0; lost != nullptr && i < k; ++i) {
    Float32& residual = source.new_residual[candidates.positions[i]];
    // A kept -0 decodes to +0, the difference of which from -0 is -0.
    if (smallest == 0 && residual.value == 0 && lost[i].value == 0) continue;
    residual.value = lost[i].value;
  }
  return {};
}

}  // namespace gradcomp
