#include "core/sign.h"
#include "cuda/scaled.h"
#include "cuda/sign.h"

namespace gradcomp::cuda {

int64_t SignEncodeWorkspace(const Codec& codec, const EncodeRow* rows, int64_t num_rows) {
  return ScaledEncodeWorkspace<SignCoder>(codec, rows, num_rows);
}

cudaError_t SignEncode(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                       uint8_t* payload, void* workspace, cudaStream_t stream) {
  return ScaledEncode<SignCoder>(codec, rows, num_rows, Rng(), payload, workspace, stream);
}

cudaError_t SignDecode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                       const DecodeRow* rows, int64_t num_rows, float scale, DecodeReport* report,
                       cudaStream_t stream) {
  return ScaledDecode<SignCoder>(codec, payloads, stride, world, rows, num_rows, scale, report,
                                 stream);
}

}  // namespace gradcomp::cuda
