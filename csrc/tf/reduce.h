// GradcompReduce: the payloads of one chunk from all ranks to the payload of their scaled sum.

#ifndef GRADCOMP_TF_REDUCE_H_
#define GRADCOMP_TF_REDUCE_H_

#include "cpu/bucket.h"
#include "tf/op_kernel.h"

namespace gradcomp::tf {

// Engine runs it, on the CPU or on a GPU: bucket.cc says what one has.
template <class Engine>
class ReduceKernel {
 public:
  bool Init(Attrs& attrs) {
    if (!attrs.Get(&codec_) || !attrs.Get("world", &world_) ||
        !attrs.Get("num_residuals", &num_residuals_)) {
      return false;
    }
    return num_residuals_ <= 1 ||
           attrs.Fail(kInvalidArgument,
                      std::to_string(num_residuals_) + " residuals: a chunk has one, or none");
  }

  bool Compute(typename Engine::Call& call) const {
    const int64_t after_residual = 1 + num_residuals_;
    TensorPtr payloads, payload, residual, new_residual;
    std::vector<Segment> segments;
    Rng rng;
    float scale;
    if (!call.GetInput(0, &payloads) || !call.GetSegments(after_residual, &segments) ||
        !call.GetRng(after_residual + 1, &rng) || !call.GetScale(after_residual + 2, &scale) ||
        (num_residuals_ == 1 && !GetResidual(call, segments, &residual, &new_residual)) ||
        // Reduce checks that this is the size of the segments' payload.
        !call.AllocateOutput(0, kUint8, {TF_TensorElementCount(payloads.get()) / world_},
                             &payload)) {
      return false;
    }
    return Engine::Reduce(call, codec_, Data<uint8_t>(payloads),
                          TF_TensorElementCount(payloads.get()), world_, segments, rng, scale,
                          residual ? Data<float>(residual) : nullptr,
                          residual ? Data<float>(new_residual) : nullptr, Data<uint8_t>(payload),
                          TF_TensorElementCount(payload.get()));
  }

 private:
  static bool GetResidual(Call& call, const std::vector<Segment>& segments, TensorPtr* residual,
                          TensorPtr* new_residual) {
    if (!call.GetInput(1, residual)) return false;
    const int64_t got = TF_TensorElementCount(residual->get());
    const int64_t want = TotalLength(segments);
    if (got != want) {
      return call.Fail(kInvalidArgument, "the residual has " + std::to_string(got) +
                                             " elements, its segments " + std::to_string(want));
    }
    return call.AllocateOutput(1, kFloat, Dims(residual->get()), new_residual);
  }

  Codec codec_;
  int64_t world_ = 0;
  int64_t num_residuals_ = 0;
};

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_REDUCE_H_
