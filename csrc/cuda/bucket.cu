#include "cuda/bucket.h"
#include "cuda/cast.h"
#include "cuda/tasks.h"

namespace gradcomp::cuda {

int64_t EncodeWorkspace(const Codec&, const EncodeRow*, int64_t) { return 0; }

int64_t DecodeWorkspace(const Codec&, const DecodeRow*, int64_t) { return 0; }

cudaError_t Encode(const Codec& codec, const EncodeRow* rows, int64_t num_rows, const Rng&,
                   uint8_t* payload, void*, int64_t workspace_size, cudaStream_t stream) {
  if (!IsValid(codec) || workspace_size < EncodeWorkspace(codec, rows, num_rows)) {
    return cudaErrorInvalidValue;
  }
  return CastEncode(codec, rows, num_rows, payload, stream);
}

cudaError_t Decode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                   const DecodeRow* rows, int64_t num_rows, float scale, DecodeReport* report,
                   void*, int64_t workspace_size, cudaStream_t stream) {
  if (!IsValid(codec) || world < 1 || workspace_size < DecodeWorkspace(codec, rows, num_rows)) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t error = ClearReport(report, stream); error != cudaSuccess) return error;
  return CastDecode(codec, payloads, stride, world, rows, num_rows, scale, report, stream);
}

}  // namespace gradcomp::cuda
