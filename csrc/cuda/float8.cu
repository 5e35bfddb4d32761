#include "core/float8.h"
#include "cuda/float8.h"
#include "cuda/scaled.h"

namespace gradcomp::cuda {

int64_t Float8EncodeWorkspace(const Codec& codec, const EncodeRow* rows, int64_t num_rows) {
  return ScaledEncodeWorkspace<Float8Coder<E4M3>>(codec, rows, num_rows);
}

cudaError_t Float8Encode(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                         uint8_t* payload, void* workspace, cudaStream_t stream) {
  const auto encode = [&](auto coder) {
    return ScaledEncode<decltype(coder)>(codec, rows, num_rows, Rng(), payload, workspace, stream);
  };
  return codec.family == Family::kFloat8E4M3 ? encode(Float8Coder<E4M3>())
                                             : encode(Float8Coder<E5M2>());
}

cudaError_t Float8Decode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                         const DecodeRow* rows, int64_t num_rows, float scale, DecodeReport* report,
                         cudaStream_t stream) {
  const auto decode = [&](auto coder) {
    return ScaledDecode<decltype(coder)>(codec, payloads, stride, world, rows, num_rows, scale,
                                         report, stream);
  };
  return codec.family == Family::kFloat8E4M3 ? decode(Float8Coder<E4M3>())
                                             : decode(Float8Coder<E5M2>());
}

}  // namespace gradcomp::cuda
