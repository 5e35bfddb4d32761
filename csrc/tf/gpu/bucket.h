// What runs the kernels of the ops on a GPU: as Cpu in tf/bucket.cc, with the same checks and
// errors. Tensors and payloads are in device memory; segments are not.

#ifndef GRADCOMP_TF_GPU_BUCKET_H_
#define GRADCOMP_TF_GPU_BUCKET_H_

#include <cstdint>
#include <vector>

#include "core/codec.h"
#include "core/threefry.h"
#include "cpu/bucket.h"
#include "tf/gpu/call.h"

namespace gradcomp::tf {

struct Gpu {
  using Call = GpuCall;

  static bool Encode(GpuCall& call, const Codec& codec, const std::vector<ConstTensor>& gradients,
                     const float* const* residuals, float* const* new_residuals,
                     const std::vector<Segment>& segments, const Rng& rng, uint8_t* payload,
                     int64_t payload_size);

  static bool Reduce(GpuCall& call, const Codec& codec, const uint8_t* payloads,
                     int64_t payloads_size, int64_t world, const std::vector<Segment>& segments,
                     const Rng& rng, float scale, const float* residual, float* new_residual,
                     uint8_t* payload, int64_t payload_size);

  static bool Decode(GpuCall& call, const Codec& codec, const uint8_t* payloads,
                     int64_t payloads_size, int64_t world, const std::vector<Segment>& segments,
                     float scale, const std::vector<MutableTensor>& outputs, bool* finite);
};

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_GPU_BUCKET_H_
