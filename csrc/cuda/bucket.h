// A bucket of any codec to its family's kernels. The rules are in rows.h.

#ifndef GRADCOMP_CUDA_BUCKET_H_
#define GRADCOMP_CUDA_BUCKET_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/codec.h"
#include "core/threefry.h"
#include "cuda/rows.h"

namespace gradcomp::cuda {

// Bytes of workspace that Encode() and Decode() of these rows need.
int64_t EncodeWorkspace(const Codec& codec, const EncodeRow* rows, int64_t num_rows);
int64_t DecodeWorkspace(const Codec& codec, const DecodeRow* rows, int64_t num_rows, int64_t world);

// Writes the payload of gradients + residuals and, with residuals, what it loses of them.
cudaError_t Encode(const Codec& codec, const EncodeRow* rows, int64_t num_rows, const Rng& rng,
                   uint8_t* payload, void* workspace, int64_t workspace_size, cudaStream_t stream);

// Writes scale * (sum over `world` payloads, `stride` bytes apart, in rank order) to the outputs.
cudaError_t Decode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                   const DecodeRow* rows, int64_t num_rows, float scale, DecodeReport* report,
                   void* workspace, int64_t workspace_size, cudaStream_t stream);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_BUCKET_H_
