// The pass over the tensors: sums go to the new residual, and candidates to the workspace.

#include "cuda/scan.h"
#include "cuda/tensors.h"
#include "cuda/topk_rows.h"

namespace gradcomp::cuda {
namespace {

constexpr int kQuads = kScanTile / (4 * kThreads);
static_assert(kQuads == 4, "ranks of four quads share a word");

__device__ __forceinline__ EncodeRow TensorOf(const TopKRow& row) {
  return {row.gradient, row.residual, row.new_residual, 0, row.length, row.kept, 0, row.dtype};
}

// Bytes moved an element: the gradient's 4 (2), 8 with residuals, and 8 for each candidate; that is
// the floor but for the candidates, 2 % of it at a density of 1 %. 64 bytes a thread are under way
// with residuals of 16-bit gradients, 128 of float32.
__global__ void __launch_bounds__(kThreads, 4)
    topk_scan_kernel(const __grid_constant__ Table<TopKRow> table) {
  __shared__ uint64_t warps[kThreads / 32];
  __shared__ uint32_t chunk_first;
  const int index = FindRow(table, blockIdx.x);
  const TopKRow& row = table.rows[index];
  const uint32_t tile = blockIdx.x - table.first_tile[index];
  const uint32_t first = tile * kScanTile;
  const int size = static_cast<int>(min(uint32_t{kScanTile}, row.length - first));
  const auto place = [](int q) { return static_cast<int>(4 * (threadIdx.x + q * kThreads)); };
  const auto at = [&](int q) { return int64_t{first} + place(q); };
  const auto count = [&](int q) { return size - place(q); };
  const EncodeRow tensor = TensorOf(row);

  float x[kQuads][4];
  LoadCorrected(tensor, at, count, x);
  if (row.new_residual != nullptr) StoreResidual(tensor, at, count, x);
  if (row.kept == 0) return;  // and so does every thread of the block

  const TopKWorkspace parts = WorkspaceOf(row);
  const uint32_t threshold = parts.state->threshold;
  uint32_t chosen[kQuads];
  uint64_t counts = 0;  // of the quads, 16 bits each
  GRADCOMP_UNROLL(4)
  for (int q = 0; q < kQuads; ++q) {
    chosen[q] = 0;
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      chosen[q] |= static_cast<uint32_t>(Magnitude(x[q][i]) >= threshold && i < count(q)) << i;
    }
    counts |= static_cast<uint64_t>(__popc(chosen[q])) << 16 * q;
  }
  // The q-th quads of all threads come before the next ones.
  const Sum<uint64_t> sum = BlockSum(counts, warps);
  const auto of_quad = [](uint64_t packed, int q) {
    return static_cast<uint32_t>(packed >> 16 * q) & 0xffff;
  };
  uint32_t total = 0;
  GRADCOMP_UNROLL(4)
  for (int q = 0; q < kQuads; ++q) total += of_quad(sum.total, q);
  if (threadIdx.x == 0) {
    chunk_first = total == 0 ? 0 : atomicAdd(&parts.state->candidates, total);
    parts.chunks[tile] = {chunk_first, total};
  }
  __syncthreads();
  if (chunk_first + total > row.capacity)
    return;  // they are counted: all elements will be searched
  uint32_t before = chunk_first;
  GRADCOMP_UNROLL(4)
  for (int q = 0; q < kQuads; ++q) {
    uint32_t to = before + of_quad(sum.before, q);
    before += of_quad(sum.total, q);
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      if ((chosen[q] >> i & 1) == 0) continue;
      parts.candidates[to] = static_cast<uint32_t>(at(q) + i);
      parts.values[to] = x[q][i];
      ++to;
    }
  }
}

}  // namespace

cudaError_t TopKScan(const TopKRows& rows, cudaStream_t stream) {
  return ForEachTable<TopKRow>(
      rows,
      [](const TopKRow& row) {
        return row.kept == 0 && row.new_residual == nullptr ? 0 : int64_t{NumTiles(row)};
      },
      [&](const Table<TopKRow>& table, int64_t blocks) {
        return Launch(topk_scan_kernel, blocks, kThreads, stream, table);
      });
}

}  // namespace gradcomp::cuda
