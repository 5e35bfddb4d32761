// Packing of codes of few bits, which core/bits.h defines: masks, and positions in small windows.

#ifndef GRADCOMP_CUDA_BITS_H_
#define GRADCOMP_CUDA_BITS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace gradcomp::cuda {

// As cpu/bits.h; neither needs a workspace. cudaErrorInvalidValue where `bits` is not 1, 2, 4 or 8.
cudaError_t PackCodes(const uint8_t* codes, int64_t n, int bits, uint8_t* packed,
                      cudaStream_t stream);
cudaError_t UnpackCodes(const uint8_t* packed, int64_t n, int bits, uint8_t* codes,
                        cudaStream_t stream);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_BITS_H_
