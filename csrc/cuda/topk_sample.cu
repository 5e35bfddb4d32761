// The threshold that a little more than k elements probably reach: a rank in a sample. What is kept
// does not depend on it, only how much work it is to find.

#include "cuda/radix.h"
#include "cuda/topk_search.h"

namespace gradcomp::cuda {
namespace {

// More than elsewhere: one block reads all of a sample, and is waited for.
constexpr int kThresholdThreads = 1024;
// Of the levels of a magnitude, a threshold needs two: its last bits are 0.
constexpr int kThresholdLevels = 2;

// SplitMix64 (Steele, Lea, Flood 2014).
__device__ __forceinline__ uint64_t Hash(uint64_t x) {
  x = (x + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Writes the magnitudes of the sample: of each of `sample_units` equal parts of the segment, a unit
// of elements at random, by neighbouring threads.
__global__ void __launch_bounds__(kThreads)
    topk_sample_kernel(const __grid_constant__ Table<TopKRow> table) {
  const int index = FindRow(table, blockIdx.x);
  const TopKRow& row = table.rows[index];
  const uint32_t i = (blockIdx.x - table.first_tile[index]) * kThreads + threadIdx.x;
  const uint32_t unit = i / kSampleUnit;
  if (unit >= row.sample_units) return;
  const uint32_t places = row.length / kSampleUnit / row.sample_units;
  const uint32_t place = unit * places + static_cast<uint32_t>(Hash(unit) % places);
  WorkspaceOf(row).sample[i] = Magnitude(LoadSum(row, place * kSampleUnit + i % kSampleUnit));
}

__device__ __forceinline__ void ClearState(TopKState* state) {
  uint32_t* words = reinterpret_cast<uint32_t*>(state);
  constexpr int kWords = sizeof(TopKState) / sizeof(uint32_t);
  for (int i = threadIdx.x; i < kWords; i += kThresholdThreads) words[i] = 0;
}

// Finds the bits of a level of the rank-th largest of the sample.
template <int kLevel>
__device__ __forceinline__ Found Narrow(const uint32_t* sample, uint32_t size, const Found& before,
                                        uint32_t* histogram) {
  constexpr uint32_t kBins = LevelBins(kLevel);
  constexpr int kShift = LevelShift(kLevel);
  for (uint32_t i = threadIdx.x; i < kBins; i += kThresholdThreads) histogram[i] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < size; i += kThresholdThreads) {
    const uint32_t bits = sample[i] >> kShift;
    if (bits / kBins == before.prefix) atomicAdd(&histogram[bits % kBins], 1u);
  }
  __syncthreads();
  const Bin bin = FindBin<kBins, kThresholdThreads>(histogram, before.rank);
  return {before.prefix * kBins + bin.index, before.rank - bin.larger};
}

__global__ void __launch_bounds__(kThresholdThreads)
    topk_threshold_kernel(const __grid_constant__ Table<TopKRow> table) {
  __shared__ uint32_t histogram[LevelBins(0)];
  const TopKRow& row = table.rows[blockIdx.x];
  const TopKWorkspace parts = WorkspaceOf(row);
  ClearState(parts.state);
  __syncthreads();
  Found found = {0, row.sample_rank};
  if (row.sample_units > 0) {
    const uint32_t size = row.sample_units * kSampleUnit;
    found = Narrow<0>(parts.sample, size, found, histogram);
    found = Narrow<1>(parts.sample, size, found, histogram);
  }
  if (threadIdx.x == 0) {
    parts.state->threshold = found.prefix << LevelShift(kThresholdLevels - 1);
    parts.state->found[0] = {0, row.kept};
  }
}

}  // namespace

cudaError_t TopKSample(const TopKRows& rows, cudaStream_t stream) {
  const cudaError_t error = ForEachTable<TopKRow>(
      rows,
      [](const TopKRow& row) { return CeilDiv(int64_t{row.sample_units} * kSampleUnit, kThreads); },
      [&](const Table<TopKRow>& table, int64_t blocks) {
        return Launch(topk_sample_kernel, blocks, kThreads, stream, table);
      });
  if (error != cudaSuccess) return error;
  return ForEachTable<TopKRow>(
      rows, [](const TopKRow& row) { return int64_t{row.kept > 0}; },
      [&](const Table<TopKRow>& table, int64_t blocks) {
        return Launch(topk_threshold_kernel, blocks, kThresholdThreads, stream, table);
      });
}

}  // namespace gradcomp::cuda
