// Exact top-k in one pass over memory: a sample suggests a threshold that a little more than k
// elements pass; those that do are collected, and an exact selection among them ends it.

#include <algorithm>
#include <cmath>

#include "core/elias_fano.h"
#include "cpu/block.h"
#include "cpu/compact.h"
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
constexpr uint32_t kAnyMagnitude = 0;

struct Candidates {
  uint32_t* positions;
  float* values;
  int64_t capacity;
  int64_t count;
};

// x[i] = gradient + residual at element first + i, also into the new residual.
GRADCOMP_CLONES void CorrectTile(const Source& source, int64_t first, int64_t n, float* x) {
  LoadCorrected(source, first, n, x);
  if (source.new_residual) std::copy_n(x, n, source.new_residual + first);
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
  for (int64_t first = 0; first < n; first += kTile) {
    const int64_t size = std::min(kTile, n - first);
    if (candidates->count + size > candidates->capacity) {
      // A later element of the same magnitude would lose the tie.
      threshold = KeepLargest(candidates->count, k, candidates->positions, candidates->values) + 1;
      candidates->count = k;
    }
    float x[kTile];
    CorrectTile(source, first, size, x);
    candidates->count +=
        Compact(x, size, threshold, static_cast<uint32_t>(first),
                candidates->positions + candidates->count, candidates->values + candidates->count);
  }
}

}  // namespace

Status TopKEncode(const Codec& codec, const Source& source, int64_t n, int64_t k,
                  const RandomStream& stream, uint8_t* payload) {
  if (k == 0) {
    float x[kTile];
    for (int64_t first = 0; first < n; first += kTile) {
      CorrectTile(source, first, std::min(kTile, n - first), x);
    }
    return {};
  }
  const int64_t capacity = k + k / 2 + kTile;
  const Scratch<uint32_t> positions(capacity);
  if (!positions.status().ok()) return positions.status();
  const Scratch<float> values(capacity);
  if (!values.status().ok()) return values.status();
  Candidates candidates = {positions.get(), values.get(), capacity, 0};

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
  float* lost = source.new_residual ? candidates.values : nullptr;
  BlockEncode(ValuesCodec(codec), {candidates.values, DType::kFloat32, nullptr, lost}, k, 0, k, 0,
              stream, payload + EliasFanoSize(n, k));
  for (int64_t i = 0; lost != nullptr && i < k; ++i) {
    UnalignedFloat& residual = source.new_residual[candidates.positions[i]];
    // A kept -0 decodes to +0, the difference of which from -0 is -0.
    if (smallest == 0 && residual == 0 && lost[i] == 0) continue;
    residual = lost[i];
  }
  return {};
}

}  // namespace gradcomp
