// Exact top-k in one pass over memory: a sample suggests a threshold that a little more than k
// elements pass; those that do are collected, and an exact selection among them ends it.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/elias_fano.h"
#include "cpu/block.h"
#include "cpu/elias_fano.h"
#include "cpu/kept_scratch.h"
#include "cpu/rank.h"
#include "cpu/scratch.h"
#include "cpu/select.h"
#include "cpu/simd.h"
#include "cpu/threads.h"
#include "cpu/topk.h"
#include "cpu/topk_scan.h"

namespace gradcomp {
namespace {

constexpr int64_t kLine = kCacheLine / static_cast<int64_t>(sizeof(float));
// Below it, sampling costs more than the candidates that it saves.
constexpr int64_t kSampledLength = 1 << 12;
// Lines that one task samples, and the most tasks.
constexpr int64_t kSampledLines = 1024;
constexpr int64_t kMaxSampleParts = 8;
// Lines that are asked for before they are needed.
constexpr int64_t kLinesAhead = 16;
// Kept elements that one task encodes: their residuals are all over memory.
constexpr int64_t kKeptTask = 1 << 14;
// Residuals that are asked for before they are needed.
constexpr int64_t kResidualsAhead = 16;
// Elements between two looks at how full the candidates are.
constexpr int64_t kStride = 4096;
// Thresholds that all elements reach, and none.
constexpr uint32_t kAnyMagnitude = 0;
constexpr uint32_t kNoMagnitude = kMagnitudeMask;

// A hash that is as good as random (SplitMix64: Steele, Lea, Flood 2014).
GRADCOMP_INLINE uint64_t Hash(uint64_t x) {
  x = (x + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The line that is sampled as the `line`-th, of the n / kLine of a tensor. A fixed sequence: equal
// inputs take equal time, and the result does not depend on it.
GRADCOMP_INLINE int64_t SampledLine(int64_t line, int64_t n) {
  const uint64_t random = Hash(static_cast<uint64_t>(line)) >> 32;
  return static_cast<int64_t>((random * static_cast<uint64_t>(n / kLine)) >> 32);
}

GRADCOMP_CLONES void SampleLines(const Source& source, int64_t n, int64_t first, int64_t count,
                                 float* sample) {
  for (int64_t line = first; line < first + count; ++line) {
    const Source ahead = Advance(source, SampledLine(line + kLinesAhead, n) * kLine);
    __builtin_prefetch(ahead.gradient);
    if (ahead.residual) __builtin_prefetch(ahead.residual);
    LoadCorrected(source, SampledLine(line, n) * kLine, kLine, sample + line * kLine);
  }
}

// A magnitude that probably a little more than k of n elements reach. Reads whole cache lines,
// because that is what memory delivers.
Status SampleThreshold(const Source& source, int64_t n, int64_t k, uint32_t* threshold) {
  // A 32nd of a short tensor; few kept elements need more to be estimated well.
  const int64_t most = k < n / 500 ? 8192 : 4096;
  const int64_t lines = std::min(most, n / kLine * most / (32 * 4096));
  const int64_t tasks = CeilDiv(lines, kSampledLines);
  const Scratch<float> sample(lines * kLine);
  if (!sample.status().ok()) return sample.status();
  ParallelFor(tasks, [&](int64_t task) {
    const int64_t first = task * kSampledLines;
    SampleLines(source, n, first, std::min(kSampledLines, lines - first), sample.get());
  });
  const double expected =
      static_cast<double>(k) / static_cast<double>(n) * static_cast<double>(lines * kLine);
  // Four standard deviations of the sample's count, and some for the smallest.
  const int64_t rank = static_cast<int64_t>(expected + 4 * std::sqrt(expected) + 4);
  *threshold = kAnyMagnitude;
  if (rank >= lines * kLine) return {};
  Candidates parts[kMaxSampleParts];
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t first = task * kSampledLines;
    const int64_t size = std::min(kSampledLines, lines - first) * kLine;
    parts[task] = {nullptr, sample.get() + first * kLine, size, size};
  }
  *threshold = KthLargest(parts, tasks, rank).magnitude;
  return {};
}

// Elements [first, first + size) of a segment, and those of them that may be among its k largest.
struct Part {
  int64_t first;
  int64_t size;
};

Part PartOf(int64_t n, int64_t num_parts, int64_t part) {
  const int64_t strides = CeilDiv(n, kStride);
  const int64_t first = strides * part / num_parts * kStride;
  return {first, std::min(n, strides * (part + 1) / num_parts * kStride) - first};
}

// Collects all elements that reach the threshold or, where these are more than fit, the k largest
// of those so far and all later ones that may still replace one.
void Collect(const Source& source, const Part& part, int64_t k, uint32_t threshold,
             Candidates* candidates) {
  candidates->count = 0;
  for (int64_t at = 0; at < part.size; at += kStride) {
    const int64_t size = std::min(kStride, part.size - at);
    if (candidates->count + size > candidates->capacity) {
      // A later element of the same magnitude would lose the tie.
      threshold = KeepLargest(k, candidates) + 1;
    }
    const bool few = threshold != kAnyMagnitude && candidates->count * kScan <= at;
    Scan(source, part.first + at, size, threshold, few, candidates);
  }
}

// The memory of candidates, and how the segment is cut.
class Workspace {
 public:
  Workspace(int64_t n, int64_t k)
      : num_parts_(NumParts(n)),
        // The most that a part can have, and it must have k or all of its own.
        capacity_(std::min(k + k / 4, CeilDiv(n, num_parts_) + kStride) + kStride),
        memory_(2 * static_cast<int64_t>(sizeof(uint32_t)) *
                (num_parts_ * Room(capacity_) + (num_parts_ > 1 ? Room(k) : 0))),
        parts_(num_parts_) {
    if (!status().ok()) return;
    for (int64_t part = 0; part < num_parts_; ++part) parts_.get()[part] = At(part, capacity_);
  }

  Status status() const { return memory_.status().ok() ? parts_.status() : memory_.status(); }
  Candidates* parts() const { return parts_.get(); }
  int64_t num_parts() const { return num_parts_; }
  // Where the k largest of several parts go.
  Candidates Kept(int64_t k) const { return At(num_parts_, k); }

 private:
  static int64_t NumParts(int64_t n) {
    const int64_t threads = NumThreads();
    return threads == 1 ? 1 : std::clamp<int64_t>(n / kTaskElements, 1, 4 * threads);
  }
  static int64_t Room(int64_t capacity) { return capacity + kSlack; }
  Candidates At(int64_t part, int64_t capacity) const {
    uint32_t* const positions = static_cast<uint32_t*>(memory_.get()) + 2 * part * Room(capacity_);
    return {positions, reinterpret_cast<float*>(positions + Room(capacity)), capacity, 0};
  }

  int64_t num_parts_;
  int64_t capacity_;
  KeptScratch memory_;
  Scratch<Candidates> parts_;
};

// Reduces what the workspace holds to the k largest, in one piece; *smallest is the last magnitude.
Candidates KeepLargest(const Workspace& workspace, int64_t k, uint32_t* smallest) {
  if (workspace.num_parts() == 1) {
    *smallest = KeepLargest(k, workspace.parts());
    return workspace.parts()[0];
  }
  Candidates kept = workspace.Kept(k);
  *smallest = KeepLargest(workspace.parts(), workspace.num_parts(), k, &kept);
  return kept;
}

// Sends the kept values and leaves in the residual what their codec loses of them.
void EncodeValues(const Codec& codec, const Source& source, const Candidates& kept,
                  uint32_t smallest, const RandomStream& stream, uint8_t* payload) {
  const int64_t k = kept.count;
  const int64_t multiple = std::max<int64_t>(codec.block_size, 1);
  const int64_t size = CeilDiv(kKeptTask, multiple) * multiple;
  ParallelFor(CeilDiv(k, size), [&](int64_t task) {
    const int64_t first = task * size;
    const int64_t count = std::min(size, k - first);
    float* const values = kept.values + first;
    // What is lost replaces them.
    Float32* const lost = source.new_residual ? reinterpret_cast<Float32*>(values) : nullptr;
    BlockEncode(codec, {values, DType::kFloat32, nullptr, lost}, k, first, count, 0, stream,
                payload);
    const uint32_t* const positions = kept.positions + first;
    for (int64_t i = 0; lost != nullptr && i < count; ++i) {
      __builtin_prefetch(source.new_residual + positions[std::min(i + kResidualsAhead, count - 1)],
                         1);
      Float32& residual = source.new_residual[positions[i]];
      // A kept -0 decodes to +0, the difference of which from -0 is -0.
      if (smallest == 0 && residual.value == 0 && lost[i].value == 0) continue;
      residual.value = lost[i].value;
    }
  });
}

}  // namespace

Status TopKEncode(const Codec& codec, const Source& source, int64_t n, int64_t k,
                  const RandomStream& stream, uint8_t* payload) {
  const Workspace workspace(n, k);
  if (!workspace.status().ok()) return workspace.status();
  const auto collect = [&](const Source& from, uint32_t threshold) {
    const int64_t num_parts = workspace.num_parts();
    ParallelFor(num_parts, [&](int64_t part) {
      Collect(from, PartOf(n, num_parts, part), k, threshold, workspace.parts() + part);
    });
    int64_t count = 0;
    for (int64_t part = 0; part < num_parts; ++part) count += workspace.parts()[part].count;
    return count;
  };
  if (k == 0) {
    collect(source, kNoMagnitude);
    return {};
  }

  uint32_t threshold = kAnyMagnitude;
  if (n >= kSampledLength) {
    if (Status status = SampleThreshold(source, n, k, &threshold); !status.ok()) return status;
  }
  if (collect(source, threshold) < k) {
    // The sample was misleading. The residual may be overwritten, but then holds the sums.
    collect(source.new_residual ? Source{source.new_residual, DType::kFloat32, nullptr, nullptr}
                                : source,
            kAnyMagnitude);
  }
  uint32_t smallest;
  const Candidates kept = KeepLargest(workspace, k, &smallest);
  EliasFanoEncode(kept.positions, k, n, payload);
  EncodeValues(ValuesCodec(codec), source, kept, smallest, stream, payload + EliasFanoSize(n, k));
  return {};
}

}  // namespace gradcomp
