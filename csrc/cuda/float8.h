// Payloads of one float32 scale a block and one float of eight bits an element.

#ifndef GRADCOMP_CUDA_FLOAT8_H_
#define GRADCOMP_CUDA_FLOAT8_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/codec.h"
#include "cuda/rows.h"

namespace gradcomp::cuda {

int64_t Float8EncodeWorkspace(const Codec& codec, const EncodeRow* rows, int64_t num_rows);

// Writes the payload of gradients + residuals and, with residuals, what it loses of them.
cudaError_t Float8Encode(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                         uint8_t* payload, void* workspace, cudaStream_t stream);

// Writes scale * (sum over `world` payloads, `stride` bytes apart, in rank order) to the outputs.
// The caller has cleared the report.
cudaError_t Float8Decode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                         const DecodeRow* rows, int64_t num_rows, float scale, DecodeReport* report,
                         cudaStream_t stream);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_FLOAT8_H_
