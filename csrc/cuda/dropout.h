// Masks of dropout, which core/dropout.h defines, a bit an element as in core/bits.h.

#ifndef GRADCOMP_CUDA_DROPOUT_H_
#define GRADCOMP_CUDA_DROPOUT_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/codec.h"

namespace gradcomp::cuda {

// As cpu/dropout.h; neither needs a workspace. Masks start at any byte, tensors at a multiple of
// their elements' size.

// `key` [1] and `counter` [2], low word first, are in device memory. cudaErrorInvalidValue where
// core/dropout.h has no such draw.
cudaError_t DrawMask(const uint64_t* key, const uint64_t* counter, int fraction_bits,
                     uint32_t threshold, int64_t n, uint8_t* packed, cudaStream_t stream);

// `y` may be `x`.
cudaError_t ApplyMask(DType dtype, const void* x, const uint8_t* packed, int64_t n, float scale,
                      void* y, cudaStream_t stream);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_DROPOUT_H_
