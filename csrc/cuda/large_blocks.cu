#include "cuda/large_blocks.h"
#include "cuda/launch.h"
#include "cuda/sign_scale.h"
#include "cuda/tasks.h"
#include "cuda/tensors.h"

namespace gradcomp::cuda {
namespace {

constexpr int kQuads = 4;
constexpr int kTile = 4 * kQuads * kThreads;
constexpr int kWarps = kThreads / 32;

// Bytes moved an element: the gradient's 4 (2), and 4 with a residual; the floor. One atomic
// operation a tile.
__global__ void __launch_bounds__(kThreads)
    large_blocks_largest_kernel(const __grid_constant__ Table<EncodeTask> table, int64_t block_size,
                                uint32_t* numbers) {
  __shared__ uint32_t largest_of_warp[kWarps];
  const int index = FindRow(table, blockIdx.x);
  const EncodeRow& row = table.rows[index].row;
  const uint32_t tile = blockIdx.x - table.first_tile[index];
  const int64_t tiles = CeilDiv(block_size, kTile);
  const int64_t block = tile / tiles;
  const int64_t first = block * block_size + tile % tiles * kTile;
  const int64_t end = min((block + 1) * block_size, row.length);
  const auto at = [&](int q) { return first + 4 * (threadIdx.x + q * kThreads); };
  const auto count = [&](int q) { return end - at(q); };
  float x[kQuads][4];
  LoadCorrected(row, at, count, x);
  uint32_t largest = 0;
  GRADCOMP_UNROLL(8)
  for (int q = 0; q < kQuads; ++q) {
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < 4; ++i) largest = max(largest, Magnitude(x[q][i]));
  }
  for (int with = 1; with < 32; with *= 2) {
    largest = max(largest, __shfl_xor_sync(kWholeWarp, largest, with));
  }
  if (threadIdx.x % 32 == 0) largest_of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < kWarps; ++warp) largest = max(largest, largest_of_warp[warp]);
    atomicMax(&numbers[table.rows[index].blocks_before + block], largest);
  }
}

// Bytes moved as above. The order of additions, 32 chains a block, leaves a block to one warp: many
// blocks keep the memory busy, one does not.
__global__ void __launch_bounds__(kThreads)
    large_blocks_sign_kernel(const __grid_constant__ Table<EncodeTask> table, int64_t block_size,
                             uint32_t* numbers) {
  const int index = FindRow(table, blockIdx.x);
  const EncodeRow& row = table.rows[index].row;
  const int64_t tile = blockIdx.x - table.first_tile[index];
  const int64_t block = tile * kWarps + threadIdx.x / 32;
  const int64_t first = block * block_size;
  if (first >= row.length) return;
  const int lane = threadIdx.x % 32;
  const auto element = [&](int64_t at) { return LoadCorrected(row, first + at); };
  const float scale = SignScaleInWarp(min(block_size, row.length - first), lane, element);
  if (lane == 0) numbers[table.rows[index].blocks_before + block] = FloatBits(scale);
}

}  // namespace

int64_t NumbersSize(const Codec& codec, const EncodeRow* rows, int64_t num_rows) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < num_rows; ++i) blocks += CeilDiv(rows[i].length, codec.block_size);
  return blocks * static_cast<int64_t>(sizeof(uint32_t));
}

cudaError_t FindLargestOfBlocks(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                                uint32_t* numbers, cudaStream_t stream) {
  const size_t size = static_cast<size_t>(NumbersSize(codec, rows, num_rows));
  if (const cudaError_t error = cudaMemsetAsync(numbers, 0, size, stream); error != cudaSuccess) {
    return error;
  }
  const int64_t block = codec.block_size;
  const auto tiles_of = [&](const EncodeRow& row) {
    return row.length / block * CeilDiv(block, kTile) + CeilDiv(row.length % block, kTile);
  };
  return ForEachTable(codec, rows, num_rows, nullptr, tiles_of,
                      [&](const Table<EncodeTask>& table, int64_t blocks) {
                        return Launch(large_blocks_largest_kernel, blocks, kThreads, stream, table,
                                      block, numbers);
                      });
}

cudaError_t FindSignScalesOfBlocks(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                                   uint32_t* numbers, cudaStream_t stream) {
  const int64_t block = codec.block_size;
  const auto tiles_of = [&](const EncodeRow& row) {
    return CeilDiv(CeilDiv(row.length, block), kWarps);
  };
  return ForEachTable(codec, rows, num_rows, nullptr, tiles_of,
                      [&](const Table<EncodeTask>& table, int64_t blocks) {
                        return Launch(large_blocks_sign_kernel, blocks, kThreads, stream, table,
                                      block, numbers);
                      });
}

}  // namespace gradcomp::cuda
