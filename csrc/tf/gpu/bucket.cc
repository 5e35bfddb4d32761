#include "tf/gpu/bucket.h"

#include "cpu/segments.h"
#include "cuda/bucket.h"
#include "cuda/report.h"

namespace gradcomp::tf {
namespace {

using cuda::DecodeReport;
using cuda::DecodeRow;
using cuda::EncodeRow;

int64_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

int64_t Count(const std::vector<Segment>& segments) {
  return static_cast<int64_t>(segments.size());
}

Status CheckPayloads(int64_t payloads_size, int64_t world, int64_t payload_size) {
  if (world < 1) return {Code::kBadWorld, world};
  if (payloads_size % world != 0 || payloads_size / world != payload_size) {
    return {Code::kBadPayloadSize, payloads_size, payload_size * world};
  }
  return {};
}

template <typename Tensor>
Status CheckTable(const Codec& codec, const std::vector<Segment>& segments,
                  const std::vector<Tensor>& tensors, int64_t* payload_size) {
  const auto numel = [&](int64_t t) { return tensors[t].numel; };
  return CheckCover(codec, segments.data(), Count(segments), static_cast<int64_t>(tensors.size()),
                    numel, payload_size);
}

bool LaunchEncode(GpuCall& call, const Codec& codec, const std::vector<EncodeRow>& rows,
                  const Rng& rng, uint8_t* payload) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t size = cuda::EncodeWorkspace(codec, rows.data(), count);
  void* workspace;
  return call.AllocateTemp(size, &workspace) &&
         call.Check(
             cuda::Encode(codec, rows.data(), count, rng, payload, workspace, size, call.stream()),
             "encode");
}

bool LaunchDecode(GpuCall& call, const Codec& codec, const uint8_t* payloads, int64_t stride,
                  int64_t world, const std::vector<DecodeRow>& rows, float scale,
                  DecodeReport** report) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t size = cuda::DecodeWorkspace(codec, rows.data(), count, world);
  void *workspace, *memory;
  if (!call.AllocateTemp(size, &workspace) || !call.AllocateTemp(sizeof(DecodeReport), &memory)) {
    return false;
  }
  *report = static_cast<DecodeReport*>(memory);
  return call.Check(cuda::Decode(codec, payloads, stride, world, rows.data(), count, scale, *report,
                                 workspace, size, call.stream()),
                    "decode");
}

}  // namespace

bool Gpu::Encode(GpuCall& call, const Codec& codec, const std::vector<ConstTensor>& gradients,
                 const float* const* residuals, float* const* new_residuals,
                 const std::vector<Segment>& segments, const Rng& rng, uint8_t* payload,
                 int64_t payload_size) {
  int64_t expected;
  Status status = CheckTable(codec, segments, gradients, &expected);
  if (status.ok() && payload_size != expected) {
    status = {Code::kBadPayloadSize, payload_size, expected};
  }
  if (!call.Check(segments, status)) return false;

  std::vector<EncodeRow> rows;
  for (const Segment& segment : segments) {
    const ConstTensor& gradient = gradients[segment.tensor];
    rows.push_back(
        {static_cast<const uint8_t*>(gradient.data) + segment.start * SizeOf(gradient.dtype),
         residuals ? residuals[segment.tensor] + segment.start : nullptr,
         new_residuals ? new_residuals[segment.tensor] + segment.start : nullptr, segment.start,
         segment.length, segment.kept, static_cast<uint32_t>(segment.stream), gradient.dtype});
  }
  return LaunchEncode(call, codec, rows, rng, payload);
}

// Through memory, unlike the CPU's: the sum is written and read once, 8 bytes an element, where the
// payloads of all ranks may have less.
bool Gpu::Reduce(GpuCall& call, const Codec& codec, const uint8_t* payloads, int64_t payloads_size,
                 int64_t world, const std::vector<Segment>& segments, const Rng& rng, float scale,
                 const float* residual, float* new_residual, uint8_t* payload,
                 int64_t payload_size) {
  int64_t expected;
  Status status = CheckRun(codec, segments.data(), Count(segments), &expected);
  if (status.ok() && codec.family == Family::kTopK) status = {Code::kBadCodec};
  if (status.ok()) status = CheckPayloads(payloads_size, world, expected);
  if (status.ok() && payload_size != expected) {
    status = {Code::kBadPayloadSize, payload_size, expected};
  }
  if (!call.Check(segments, status)) return false;

  void* memory;
  if (!call.AllocateTemp(TotalLength(segments) * int64_t{sizeof(float)}, &memory)) return false;
  float* sum = static_cast<float*>(memory);
  std::vector<DecodeRow> decoded;
  std::vector<EncodeRow> encoded;
  for (const Segment& segment : segments) {
    decoded.push_back({sum, segment.length, 0, DType::kFloat32});
    encoded.push_back({sum, residual, new_residual, segment.start, segment.length, 0,
                       static_cast<uint32_t>(segment.stream), DType::kFloat32});
    sum += segment.length;
    if (residual != nullptr) residual += segment.length, new_residual += segment.length;
  }
  DecodeReport* report;
  return LaunchDecode(call, codec, payloads, expected, world, decoded, scale, &report) &&
         LaunchEncode(call, codec, encoded, rng, payload);
}

bool Gpu::Decode(GpuCall& call, const Codec& codec, const uint8_t* payloads, int64_t payloads_size,
                 int64_t world, const std::vector<Segment>& segments, float scale,
                 const std::vector<MutableTensor>& outputs, bool* finite) {
  int64_t stride;
  Status status = CheckTable(codec, segments, outputs, &stride);
  if (status.ok()) status = CheckPayloads(payloads_size, world, stride);
  if (!call.Check(segments, status)) return false;

  std::vector<DecodeRow> rows;
  for (const Segment& segment : segments) {
    const MutableTensor& output = outputs[segment.tensor];
    rows.push_back({static_cast<uint8_t*>(output.data) + segment.start * SizeOf(output.dtype),
                    segment.length, segment.kept, output.dtype});
  }
  DecodeReport* report;
  return LaunchDecode(call, codec, payloads, stride, world, rows, scale, &report) &&
         call.Check(cuda::WriteFinite(report, finite, call.stream()), "decode") &&
         // Any bytes of the others are somebody's payload.
         (codec.family != Family::kTopK || call.Read(report));
}

}  // namespace gradcomp::tf
