// The codes of increasing positions, csrc/cpu/elias_fano.h on the device. Tables of them are
// launched by whoever has the positions (launch.h).

#ifndef GRADCOMP_CUDA_ELIAS_FANO_H_
#define GRADCOMP_CUDA_ELIAS_FANO_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/codec.h"
#include "core/elias_fano.h"
#include "cuda/launch.h"
#include "cuda/rows.h"

namespace gradcomp::cuda {

// Bytes of a stream that a block writes or reads: four a thread.
constexpr int kCodeBytes = 4 * kThreads;

// `k` increasing positions below `n`, 1 <= k <= n < 2^32, and their EliasFanoSize(n, k) bytes.
struct PositionsRow {
  const uint32_t* positions;
  uint8_t* bytes;
  uint32_t n;
  uint32_t k;
};

inline int64_t EliasFanoEncodeBlocks(const PositionsRow& row) {
  const int64_t lower = EliasFanoLowerSize(row.n, row.k);
  return CeilDiv(lower, kCodeBytes) + CeilDiv(EliasFanoSize(row.n, row.k) - lower, kCodeBytes);
}
cudaError_t EliasFanoEncode(const Table<PositionsRow>& table, int64_t blocks, cudaStream_t stream);

// The codes of `world` ranks, `stride` bytes apart, and where their positions go: `k` for each
// rank.
struct CodesRow {
  const uint8_t* bytes;  // rank 0's
  uint32_t* positions;   // rank 0's
  uint32_t* ones;        // workspace: one for each block
  uint32_t n;
  uint32_t k;
  uint32_t row;  // its number in the bucket, for reports
};

GRADCOMP_HOST_DEVICE inline int64_t EliasFanoBlocksOfRank(uint32_t n, uint32_t k) {
  return CeilDiv(EliasFanoSize(n, k) - EliasFanoLowerSize(n, k), kCodeBytes);
}
// EliasFanoCount() comes first. Bytes that no encoder writes are reported; if any are, positions
// may be missing. Those that are there are below n.
cudaError_t EliasFanoCount(const Table<CodesRow>& table, int64_t blocks, int64_t stride,
                           cudaStream_t stream);
cudaError_t EliasFanoDecode(const Table<CodesRow>& table, int64_t blocks, int64_t stride,
                            DecodeReport* report, cudaStream_t stream);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_ELIAS_FANO_H_
