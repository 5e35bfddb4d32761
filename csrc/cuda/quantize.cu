#include "core/quantize.h"
#include "cuda/quantize.h"
#include "cuda/scaled.h"

namespace gradcomp::cuda {

int64_t QuantizeEncodeWorkspace(const Codec& codec, const EncodeRow* rows, int64_t num_rows) {
  switch (codec.bits) {
    case 8:
      return ScaledEncodeWorkspace<QuantizeCoder<8, false>>(codec, rows, num_rows);
    case 4:
      return ScaledEncodeWorkspace<QuantizeCoder<4, false>>(codec, rows, num_rows);
    default:
      return ScaledEncodeWorkspace<QuantizeCoder<2, false>>(codec, rows, num_rows);
  }
}

cudaError_t QuantizeEncode(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                           const Rng& rng, uint8_t* payload, void* workspace, cudaStream_t stream) {
  const auto encode = [&](auto coder) {
    return ScaledEncode<decltype(coder)>(codec, rows, num_rows, rng, payload, workspace, stream);
  };
  switch (codec.bits * 2 + codec.stochastic) {
    case 16:
      return encode(QuantizeCoder<8, false>());
    case 17:
      return encode(QuantizeCoder<8, true>());
    case 8:
      return encode(QuantizeCoder<4, false>());
    case 9:
      return encode(QuantizeCoder<4, true>());
    case 4:
      return encode(QuantizeCoder<2, false>());
    case 5:
      return encode(QuantizeCoder<2, true>());
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t QuantizeDecode(const Codec& codec, const uint8_t* payloads, int64_t stride,
                           int64_t world, const DecodeRow* rows, int64_t num_rows, float scale,
                           DecodeReport* report, cudaStream_t stream) {
  const auto decode = [&](auto coder) {
    return ScaledDecode<decltype(coder)>(codec, payloads, stride, world, rows, num_rows, scale,
                                         report, stream);
  };
  // Codes are read alike however they were rounded.
  switch (codec.bits) {
    case 8:
      return decode(QuantizeCoder<8, false>());
    case 4:
      return decode(QuantizeCoder<4, false>());
    case 2:
      return decode(QuantizeCoder<2, false>());
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace gradcomp::cuda
