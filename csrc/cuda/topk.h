// Payloads of the k elements of largest magnitude, ties to the lowest position: csrc/cpu/topk.h on
// the device, for all segments of a bucket at once. The conventions are in rows.h.

#ifndef GRADCOMP_CUDA_TOPK_H_
#define GRADCOMP_CUDA_TOPK_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/codec.h"
#include "core/threefry.h"
#include "cuda/rows.h"

namespace gradcomp::cuda {

int64_t TopKEncodeWorkspace(const Codec& codec, const EncodeRow* rows, int64_t num_rows);
cudaError_t TopKEncode(const Codec& codec, const EncodeRow* rows, int64_t num_rows, const Rng& rng,
                       uint8_t* payload, void* workspace, cudaStream_t stream);

// Where a payload is reported as bad, outputs hold anything.
int64_t TopKDecodeWorkspace(const DecodeRow* rows, int64_t num_rows, int64_t world);
cudaError_t TopKDecode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                       const DecodeRow* rows, int64_t num_rows, float scale, DecodeReport* report,
                       void* workspace, cudaStream_t stream);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_TOPK_H_
