// Where the kernels of the top-k encoder look for what is kept.

#ifndef GRADCOMP_CUDA_TOPK_SEARCH_H_
#define GRADCOMP_CUDA_TOPK_SEARCH_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/float_bits.h"
#include "cuda/tensors.h"
#include "cuda/topk_rows.h"

namespace gradcomp::cuda {

// Element i of gradient + residual.
__device__ __forceinline__ float LoadSum(const TopKRow& row, uint32_t i) {
  const float gradient = LoadOne(row.gradient, row.dtype, i);
  return Canonical(row.residual != nullptr ? gradient + row.residual[i] : gradient);
}

// Likewise, after the scan.
__device__ __forceinline__ float LoadStored(const TopKRow& row, uint32_t i) {
  if (row.new_residual != nullptr) return row.new_residual[i];
  return Canonical(LoadOne(row.gradient, row.dtype, i));
}

// The candidates. Where there are fewer than k of them, or more than there was room for, the sample
// was misleading: then all elements.
class Searched {
 public:
  __device__ __forceinline__ Searched(const TopKRow& row, const TopKWorkspace& parts)
      : row_(row), parts_(parts), count_(parts.state->candidates) {}

  __device__ __forceinline__ bool all() const {
    return count_ < row_.kept || count_ > row_.capacity;
  }
  __device__ __forceinline__ uint32_t size() const { return all() ? row_.length : count_; }
  __device__ __forceinline__ float value(uint32_t i) const {
    return all() ? LoadStored(row_, i) : parts_.values[i];
  }
  __device__ __forceinline__ uint32_t position(uint32_t i) const {
    return all() ? i : parts_.candidates[i];
  }
  // Those of a tile.
  __device__ __forceinline__ Chunk OfTile(uint32_t tile) const {
    if (!all()) return parts_.chunks[tile];
    const uint32_t first = tile * kScanTile;
    return {first, min(uint32_t{kScanTile}, row_.length - first)};
  }

 private:
  const TopKRow& row_;
  const TopKWorkspace& parts_;
  uint32_t count_;
};

// Blocks that share what is searched of a row.
inline int64_t SearchBlocks(const TopKRow& row) {
  constexpr int64_t kElements = 1 << 15, kMost = 1024;
  return row.kept == 0 ? 0 : min(kMost, CeilDiv(row.length, kElements));
}

// The part of a block in the work on a row.
struct Share {
  uint32_t index;
  uint32_t count;
};

template <typename Row>
__device__ __forceinline__ Share ShareOf(const Table<Row>& table, int row) {
  return {blockIdx.x - table.first_tile[row], table.first_tile[row + 1] - table.first_tile[row]};
}

// Calls work(tile) for the tiles of a block, with all lanes of a warp.
template <typename Work>
__device__ __forceinline__ void ForEachTileOfWarp(const TopKRow& row, const Share& share,
                                                  const Work& work) {
  constexpr uint32_t kWarps = kThreads / 32;
  for (uint32_t tile = share.index * kWarps + threadIdx.x / 32; tile < NumTiles(row);
       tile += share.count * kWarps) {
    work(tile);
  }
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_TOPK_SEARCH_H_
