// The numbers that stand for blocks too large for a tile: see scaled.h.

#ifndef GRADCOMP_CUDA_LARGE_BLOCKS_H_
#define GRADCOMP_CUDA_LARGE_BLOCKS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/codec.h"
#include "cuda/rows.h"

namespace gradcomp::cuda {

// A number for each block of all rows, in bytes.
int64_t NumbersSize(const Codec& codec, const EncodeRow* rows, int64_t num_rows);

// The largest magnitude of each block.
cudaError_t FindLargestOfBlocks(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                                uint32_t* numbers, cudaStream_t stream);

// The bits of each block's scale for signs.
cudaError_t FindSignScalesOfBlocks(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                                   uint32_t* numbers, cudaStream_t stream);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_LARGE_BLOCKS_H_
