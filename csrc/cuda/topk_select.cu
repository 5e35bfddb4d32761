// The k-th largest magnitude, by a radix select of three levels. Whether candidates or all elements
// are searched is for the device to say: the host waits for nothing.

#include "cuda/radix.h"
#include "cuda/scan.h"
#include "cuda/topk_search.h"

namespace gradcomp::cuda {
namespace {

constexpr int kPrefixThreads = 1024;

// From before a level to after it, by its histogram.
template <int kLevel>
__device__ __forceinline__ Found GoOn(const TopKState* state) {
  const Found before = state->found[kLevel];
  const Bin bin = FindBin<LevelBins(kLevel), kThreads>(state->histogram[kLevel], before.rank);
  return {before.prefix * LevelBins(kLevel) + bin.index, before.rank - bin.larger};
}

// Bytes read: 4 for each candidate, out of the L2 cache up to a few millions.
template <int kLevel>
__global__ void __launch_bounds__(kThreads)
    topk_histogram_kernel(const __grid_constant__ Table<TopKRow> table) {
  constexpr uint32_t kBins = LevelBins(kLevel);
  __shared__ uint32_t histogram[kBins];
  const int index = FindRow(table, blockIdx.x);
  const TopKRow& row = table.rows[index];
  const Share share = ShareOf(table, index);
  const TopKWorkspace parts = WorkspaceOf(row);
  const Searched searched(row, parts);
  Found found = {0, row.kept};
  if constexpr (kLevel > 0) {
    // Every block finds it for itself, one writes it down for the kernels that follow.
    found = GoOn<kLevel - 1>(parts.state);
    if (share.index == 0 && threadIdx.x == 0) parts.state->found[kLevel] = found;
  }
  for (uint32_t i = threadIdx.x; i < kBins; i += kThreads) histogram[i] = 0;
  __syncthreads();
  const uint64_t size = searched.size();
  for (uint64_t i = uint64_t{share.index} * kThreads + threadIdx.x; i < size;
       i += uint64_t{share.count} * kThreads) {
    const uint32_t bits = Magnitude(searched.value(static_cast<uint32_t>(i))) >> LevelShift(kLevel);
    if (bits / kBins == found.prefix) atomicAdd(&histogram[bits % kBins], 1u);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < kBins; i += kThreads) {
    if (histogram[i] != 0) atomicAdd(&parts.state->histogram[kLevel][i], histogram[i]);
  }
}

// Counts what is larger than the k-th magnitude in each tile, and what equals it.
__global__ void __launch_bounds__(kThreads)
    topk_count_kernel(const __grid_constant__ Table<TopKRow> table) {
  const int index = FindRow(table, blockIdx.x);
  const TopKRow& row = table.rows[index];
  const Share share = ShareOf(table, index);
  const TopKWorkspace parts = WorkspaceOf(row);
  const Searched searched(row, parts);
  const Found found = GoOn<kLevels - 1>(parts.state);
  if (share.index == 0 && threadIdx.x == 0) parts.state->found[kLevels] = found;
  ForEachTileOfWarp(row, share, [&](uint32_t tile) {
    const Chunk chunk = searched.OfTile(tile);
    uint64_t counts = 0;
    for (uint32_t i = Lane(); i < chunk.count; i += 32) {
      const uint32_t magnitude = Magnitude(searched.value(chunk.first + i));
      counts += static_cast<uint64_t>(magnitude > found.prefix) << 32 |
                static_cast<uint64_t>(magnitude == found.prefix);
    }
    counts = WarpInclusiveSum(counts);
    if (Lane() == 31) parts.counts[tile] = counts;
  });
}

// Replaces the counts of each tile by those of all tiles before it. A block has a row.
__global__ void __launch_bounds__(kPrefixThreads)
    topk_prefix_kernel(const __grid_constant__ Table<TopKRow> table) {
  __shared__ uint64_t warps[kPrefixThreads / 32];
  const TopKRow& row = table.rows[blockIdx.x];
  uint64_t* const counts = WorkspaceOf(row).counts;
  const uint32_t tiles = NumTiles(row);
  const uint32_t own = (tiles - 1) / kPrefixThreads + 1;
  const uint32_t first = threadIdx.x * own, end = min(tiles, first + own);
  uint64_t of_own = 0;
  for (uint32_t tile = first; tile < end; ++tile) of_own += counts[tile];
  uint64_t before = BlockSum(of_own, warps).before;
  for (uint32_t tile = first; tile < end; ++tile) {
    const uint64_t of_tile = counts[tile];
    counts[tile] = before;
    before += of_tile;
  }
}

}  // namespace

cudaError_t TopKSelect(const TopKRows& rows, cudaStream_t stream) {
  const auto share = [&](auto kernel) {
    return ForEachTable<TopKRow>(rows, SearchBlocks,
                                 [&](const Table<TopKRow>& table, int64_t blocks) {
                                   return Launch(kernel, blocks, kThreads, stream, table);
                                 });
  };
  cudaError_t error = share(topk_histogram_kernel<0>);
  if (error == cudaSuccess) error = share(topk_histogram_kernel<1>);
  if (error == cudaSuccess) error = share(topk_histogram_kernel<2>);
  if (error == cudaSuccess) error = share(topk_count_kernel);
  if (error != cudaSuccess) return error;
  return ForEachTable<TopKRow>(
      rows, [](const TopKRow& row) { return int64_t{row.kept > 0}; },
      [&](const Table<TopKRow>& table, int64_t blocks) {
        return Launch(topk_prefix_kernel, blocks, kPrefixThreads, stream, table);
      });
}

}  // namespace gradcomp::cuda
