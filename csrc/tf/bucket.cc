// GradcompEncode, GradcompReduce and GradcompDecode on the CPU.

#include "cpu/bucket.h"

#include <cstdint>
#include <vector>

#include "tf/decode.h"
#include "tf/encode.h"
#include "tf/op_kernel.h"
#include "tf/reduce.h"

namespace gradcomp::tf {
namespace {

// What runs the kernels: an engine takes what the functions of cpu/bucket.h take, and the call,
// which it tells of errors.
struct Cpu {
  using Call = tf::Call;

  static bool Encode(Call& call, const Codec& codec, const std::vector<ConstTensor>& gradients,
                     const float* const* residuals, float* const* new_residuals,
                     const std::vector<Segment>& segments, const Rng& rng, uint8_t* payload,
                     int64_t payload_size) {
    return call.Check(
        segments,
        gradcomp::Encode(codec, gradients.data(), residuals, new_residuals,
                         static_cast<int64_t>(gradients.size()), segments.data(),
                         static_cast<int64_t>(segments.size()), rng, payload, payload_size));
  }

  static bool Reduce(Call& call, const Codec& codec, const uint8_t* payloads, int64_t payloads_size,
                     int64_t world, const std::vector<Segment>& segments, const Rng& rng,
                     float scale, const float* residual, float* new_residual, uint8_t* payload,
                     int64_t payload_size) {
    return call.Check(segments,
                      gradcomp::Reduce(codec, payloads, payloads_size, world, segments.data(),
                                       static_cast<int64_t>(segments.size()), rng, scale, residual,
                                       new_residual, payload, payload_size));
  }

  static bool Decode(Call& call, const Codec& codec, const uint8_t* payloads, int64_t payloads_size,
                     int64_t world, const std::vector<Segment>& segments, float scale,
                     const std::vector<MutableTensor>& outputs, bool* finite) {
    return call.Check(segments,
                      gradcomp::Decode(codec, payloads, payloads_size, world, segments.data(),
                                       static_cast<int64_t>(segments.size()), scale, outputs.data(),
                                       static_cast<int64_t>(outputs.size()), finite));
  }
};

}  // namespace

void RegisterBucketKernels() {
  RegisterCpuKernel<EncodeKernel<Cpu>>("GradcompEncode");
  RegisterCpuKernel<ReduceKernel<Cpu>>("GradcompReduce");
  RegisterCpuKernel<DecodeKernel<Cpu>>("GradcompDecode");
}

}  // namespace gradcomp::tf
