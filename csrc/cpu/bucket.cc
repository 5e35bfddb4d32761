#include "cpu/bucket.h"

#include <algorithm>

#include "cpu/block.h"
#include "cpu/float_control.h"
#include "cpu/scratch.h"
#include "cpu/segments.h"
#include "cpu/tile.h"
#include "cpu/topk.h"

namespace gradcomp {
namespace {

// Elements that Reduce decodes before it encodes them again: enough to amortise the calls, few
// enough to stay in second-level cache.
constexpr int64_t kReduceRun = 1 << 15;

const Float32* Elements(const float* data) { return reinterpret_cast<const Float32*>(data); }
Float32* Elements(float* data) { return reinterpret_cast<Float32*>(data); }

RandomStream StreamOf(const Rng& rng, const Segment& segment) {
  return {{static_cast<uint32_t>(rng.seed), static_cast<uint32_t>(rng.seed >> 32),
           static_cast<uint32_t>(rng.step), static_cast<uint32_t>(rng.step >> 32)},
          {static_cast<uint32_t>(segment.stream), rng.rank * 2 + rng.phase}};
}

Status CheckPayloads(int64_t payloads_size, int64_t world, int64_t payload_size) {
  if (world < 1) return {Code::kBadWorld, world};
  if (payloads_size % world != 0 || payloads_size / world != payload_size) {
    return {Code::kBadPayloadSize, payloads_size, payload_size * world};
  }
  return {};
}

Status EncodeSegment(const Codec& codec, const Source& source, const Segment& segment,
                     const RandomStream& stream, uint8_t* payload) {
  if (codec.family == Family::kTopK) {
    return TopKEncode(codec, source, segment.length, segment.kept, stream, payload);
  }
  BlockEncode(codec, source, segment.length, 0, segment.length, segment.start, stream, payload);
  return {};
}

Status DecodeSegment(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                     const Segment& segment, const Sink& sink, bool* finite) {
  if (codec.family == Family::kTopK) {
    return TopKDecode(codec, payloads, stride, world, segment.length, segment.kept, sink, finite);
  }
  *finite = BlockDecode(codec, payloads, stride, world, segment.length, 0, segment.length, sink);
  return {};
}

}  // namespace

Status Encode(const Codec& codec, const ConstTensor* gradients, const float* const* residuals,
              float* const* new_residuals, int64_t num_tensors, const Segment* segments,
              int64_t num_segments, const Rng& rng, uint8_t* payload, int64_t payload_size) {
  int64_t expected;
  const auto numel = [&](int64_t t) { return gradients[t].numel; };
  Status status = CheckCover(codec, segments, num_segments, num_tensors, numel, &expected);
  if (!status.ok()) return status;
  if ((residuals == nullptr) != (new_residuals == nullptr)) return {Code::kBadResidual};
  if (payload_size != expected) return {Code::kBadPayloadSize, payload_size, expected};

  const DefaultFloatControl float_control;
  for (int64_t row = 0; row < num_segments; ++row) {
    const Segment& segment = segments[row];
    const ConstTensor& gradient = gradients[segment.tensor];
    const Source tensor = {gradient.data, gradient.dtype,
                           residuals ? Elements(residuals[segment.tensor]) : nullptr,
                           new_residuals ? Elements(new_residuals[segment.tensor]) : nullptr};
    status = EncodeSegment(codec, Advance(tensor, segment.start), segment, StreamOf(rng, segment),
                           payload);
    if (!status.ok()) return status;
    payload += PayloadSize(codec, segment.length, segment.kept);
  }
  return {};
}

Status Decode(const Codec& codec, const uint8_t* payloads, int64_t payloads_size, int64_t world,
              const Segment* segments, int64_t num_segments, float scale,
              const MutableTensor* outputs, int64_t num_tensors, bool* finite) {
  int64_t stride;
  const auto numel = [&](int64_t t) { return outputs[t].numel; };
  Status status = CheckCover(codec, segments, num_segments, num_tensors, numel, &stride);
  if (!status.ok()) return status;
  status = CheckPayloads(payloads_size, world, stride);
  if (!status.ok()) return status;

  const DefaultFloatControl float_control;
  *finite = true;
  for (int64_t row = 0; row < num_segments; ++row) {
    const Segment& segment = segments[row];
    const MutableTensor& output = outputs[segment.tensor];
    const Sink sink = Advance({output.data, output.dtype, scale}, segment.start);
    bool segment_finite;
    status = DecodeSegment(codec, payloads, stride, world, segment, sink, &segment_finite);
    if (status.code == Code::kBadPayload) status.got = row;
    if (!status.ok()) return status;
    *finite &= segment_finite;
    payloads += PayloadSize(codec, segment.length, segment.kept);
  }
  return {};
}

Status Reduce(const Codec& codec, const uint8_t* payloads, int64_t payloads_size, int64_t world,
              const Segment* segments, int64_t num_segments, const Rng& rng, float scale,
              const float* residual, float* new_residual, uint8_t* payload, int64_t payload_size) {
  int64_t expected;
  Status status = CheckRun(codec, segments, num_segments, &expected);
  if (!status.ok()) return status;
  if (codec.family == Family::kTopK) return {Code::kBadCodec};
  status = CheckPayloads(payloads_size, world, expected);
  if (!status.ok()) return status;
  if ((residual == nullptr) != (new_residual == nullptr)) return {Code::kBadResidual};
  if (payload_size != expected) return {Code::kBadPayloadSize, payload_size, expected};

  const int64_t block = std::max<int64_t>(codec.block_size, 1);
  int64_t longest = 0;
  for (int64_t row = 0; row < num_segments; ++row)
    longest = std::max(longest, segments[row].length);
  const int64_t run = std::min(longest, CeilDiv(kReduceRun, block) * block);
  const Scratch<float> sum(run);
  if (!sum.status().ok()) return sum.status();

  const DefaultFloatControl float_control;
  Source chunk = {sum.get(), DType::kFloat32, Elements(residual), Elements(new_residual)};
  for (int64_t row = 0; row < num_segments; ++row) {
    const Segment& segment = segments[row];
    for (int64_t first = 0; first < segment.length; first += run) {
      const int64_t count = std::min(run, segment.length - first);
      BlockDecode(codec, payloads, expected, world, segment.length, first, count,
                  {sum.get(), DType::kFloat32, scale});
      BlockEncode(codec, chunk, segment.length, first, count, segment.start, StreamOf(rng, segment),
                  payload);
      if (residual != nullptr) chunk.residual += count, chunk.new_residual += count;
    }
    const int64_t size = PayloadSize(codec, segment.length, segment.kept);
    payloads += size;
    payload += size;
  }
  return {};
}

}  // namespace gradcomp
