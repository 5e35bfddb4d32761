#include "cpu/bucket.h"

#include <algorithm>
#include <atomic>

#include "cpu/block.h"
#include "cpu/float_control.h"
#include "cpu/runs.h"
#include "cpu/scratch.h"
#include "cpu/segments.h"
#include "cpu/tile.h"
#include "cpu/topk.h"

namespace gradcomp {
namespace {

// Bytes of a bucket from which on nothing of it is in cache when it is next used, whatever is done.
constexpr int64_t kStreamedBytes = int64_t{16} << 20;

// Elements that Reduce decodes before it encodes them again: enough to amortise the calls, few
// enough to stay in second-level cache.
constexpr int64_t kReduceRun = 1 << 15;

const Float32* Elements(const float* data) { return reinterpret_cast<const Float32*>(data); }
Float32* Elements(float* data) { return reinterpret_cast<Float32*>(data); }

RandomStream StreamOf(const Rng& rng, const Segment& segment) {
  return StreamOf(rng, static_cast<uint32_t>(segment.stream));
}

Status CheckPayloads(int64_t payloads_size, int64_t world, int64_t payload_size) {
  if (world < 1) return {Code::kBadWorld, world};
  if (payloads_size % world != 0 || payloads_size / world != payload_size) {
    return {Code::kBadPayloadSize, payloads_size, payload_size * world};
  }
  return {};
}

Status EncodeRun(const Codec& codec, const Source& source, const Segment& segment, const Run& run,
                 const RandomStream& stream, uint8_t* payload) {
  if (codec.family == Family::kTopK) {
    return TopKEncode(codec, source, segment.length, segment.kept, stream, payload);
  }
  BlockEncode(codec, source, segment.length, run.first, run.count, segment.start, stream, payload);
  return {};
}

Status DecodeRun(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                 const Segment& segment, const Run& run, const Sink& sink, bool* finite) {
  if (codec.family == Family::kTopK) {
    return TopKDecode(codec, payloads, stride, world, segment.length, segment.kept, sink, finite);
  }
  *finite = BlockDecode(codec, payloads, stride, world, segment.length, run.first, run.count, sink);
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

  int64_t bytes = 0;
  for (int64_t t = 0; t < num_tensors; ++t) {
    bytes += gradients[t].numel * SizeOf(gradients[t].dtype);
  }
  const bool large = bytes >= kStreamedBytes;
  const DefaultFloatControl float_control;
  return ForEachRun(codec, segments, num_segments, [&](const Run& run) {
    const Segment& segment = segments[run.row];
    const ConstTensor& gradient = gradients[segment.tensor];
    const Source tensor = {
        gradient.data, gradient.dtype, residuals ? Elements(residuals[segment.tensor]) : nullptr,
        new_residuals ? Elements(new_residuals[segment.tensor]) : nullptr, large};
    return EncodeRun(codec, Advance(tensor, segment.start + run.first), segment, run,
                     StreamOf(rng, segment), payload + run.payload);
  });
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

  int64_t bytes = 0;
  for (int64_t t = 0; t < num_tensors; ++t) bytes += outputs[t].numel * SizeOf(outputs[t].dtype);
  const bool streamed = bytes >= kStreamedBytes;
  const DefaultFloatControl float_control;
  std::atomic<bool> all_finite{true};
  status = ForEachRun(codec, segments, num_segments, [&](const Run& run) {
    const Segment& segment = segments[run.row];
    const MutableTensor& output = outputs[segment.tensor];
    const Sink tensor = {output.data, output.dtype, scale, streamed};
    bool run_finite = true;
    Status of_run = DecodeRun(codec, payloads + run.payload, stride, world, segment, run,
                              Advance(tensor, segment.start + run.first), &run_finite);
    if (of_run.code == Code::kBadPayload) of_run.got = run.row;
    if (!run_finite) all_finite = false;
    return of_run;
  });
  *finite = all_finite;
  return status;
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
  const DefaultFloatControl float_control;
  return ForEachRun(codec, segments, num_segments, [&](const Run& run) {
    const Segment& segment = segments[run.row];
    const int64_t most = std::min(run.count, CeilDiv(kReduceRun, block) * block);
    const Scratch<float> sum(most);
    if (!sum.status().ok()) return sum.status();
    for (int64_t at = 0; at < run.count; at += most) {
      const int64_t first = run.first + at;
      const int64_t count = std::min(most, run.count - at);
      BlockDecode(codec, payloads + run.payload, expected, world, segment.length, first, count,
                  {sum.get(), DType::kFloat32, scale, false});
      const int64_t element = run.element + first;
      const Source source = {sum.get(), DType::kFloat32,
                             residual ? Elements(residual) + element : nullptr,
                             new_residual ? Elements(new_residual) + element : nullptr};
      BlockEncode(codec, source, segment.length, first, count, segment.start,
                  StreamOf(rng, segment), payload + run.payload);
    }
    return Status();
  });
}

}  // namespace gradcomp
