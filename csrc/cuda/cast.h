// Payloads that are the elements themselves, as float32, float16 or bfloat16. No workspace.

#ifndef GRADCOMP_CUDA_CAST_H_
#define GRADCOMP_CUDA_CAST_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/codec.h"
#include "cuda/rows.h"

namespace gradcomp::cuda {

// Writes the payload of gradients + residuals and, with residuals, what it loses of them.
cudaError_t CastEncode(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                       uint8_t* payload, cudaStream_t stream);

// Writes scale * (sum over `world` payloads, `stride` bytes apart, in rank order) to the outputs.
// `report` has been set by the caller.
cudaError_t CastDecode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                       const DecodeRow* rows, int64_t num_rows, float scale, DecodeReport* report,
                       cudaStream_t stream);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_CAST_H_
