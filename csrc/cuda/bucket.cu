#include "cuda/bucket.h"
#include "cuda/cast.h"
#include "cuda/float8.h"
#include "cuda/quantize.h"
#include "cuda/sign.h"
#include "cuda/tasks.h"
#include "cuda/topk.h"

namespace gradcomp::cuda {

int64_t EncodeWorkspace(const Codec& codec, const EncodeRow* rows, int64_t num_rows) {
  switch (codec.family) {
    case Family::kQuantize:
      return QuantizeEncodeWorkspace(codec, rows, num_rows);
    case Family::kFloat8E4M3:
    case Family::kFloat8E5M2:
      return Float8EncodeWorkspace(codec, rows, num_rows);
    case Family::kSign:
      return SignEncodeWorkspace(codec, rows, num_rows);
    case Family::kTopK:
      return TopKEncodeWorkspace(codec, rows, num_rows);
    default:
      return 0;
  }
}

int64_t DecodeWorkspace(const Codec& codec, const DecodeRow* rows, int64_t num_rows,
                        int64_t world) {
  return codec.family == Family::kTopK ? TopKDecodeWorkspace(rows, num_rows, world) : 0;
}

cudaError_t Encode(const Codec& codec, const EncodeRow* rows, int64_t num_rows, const Rng& rng,
                   uint8_t* payload, void* workspace, int64_t workspace_size, cudaStream_t stream) {
  if (!IsValid(codec) || workspace_size < EncodeWorkspace(codec, rows, num_rows)) {
    return cudaErrorInvalidValue;
  }
  switch (codec.family) {
    case Family::kQuantize:
      return QuantizeEncode(codec, rows, num_rows, rng, payload, workspace, stream);
    case Family::kFloat8E4M3:
    case Family::kFloat8E5M2:
      return Float8Encode(codec, rows, num_rows, payload, workspace, stream);
    case Family::kSign:
      return SignEncode(codec, rows, num_rows, payload, workspace, stream);
    case Family::kTopK:
      return TopKEncode(codec, rows, num_rows, rng, payload, workspace, stream);
    default:
      return CastEncode(codec, rows, num_rows, payload, stream);
  }
}

cudaError_t Decode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                   const DecodeRow* rows, int64_t num_rows, float scale, DecodeReport* report,
                   void* workspace, int64_t workspace_size, cudaStream_t stream) {
  if (!IsValid(codec) || world < 1 ||
      workspace_size < DecodeWorkspace(codec, rows, num_rows, world)) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t error = ClearReport(report, stream); error != cudaSuccess) return error;
  switch (codec.family) {
    case Family::kQuantize:
      return QuantizeDecode(codec, payloads, stride, world, rows, num_rows, scale, report, stream);
    case Family::kFloat8E4M3:
    case Family::kFloat8E5M2:
      return Float8Decode(codec, payloads, stride, world, rows, num_rows, scale, report, stream);
    case Family::kSign:
      return SignDecode(codec, payloads, stride, world, rows, num_rows, scale, report, stream);
    case Family::kTopK:
      return TopKDecode(codec, payloads, stride, world, rows, num_rows, scale, report, workspace,
                        stream);
    default:
      return CastDecode(codec, payloads, stride, world, rows, num_rows, scale, report, stream);
  }
}

}  // namespace gradcomp::cuda
