// GradcompEncode: a bucket's gradients and residuals to one payload and new residuals.

#ifndef GRADCOMP_TF_ENCODE_H_
#define GRADCOMP_TF_ENCODE_H_

#include <algorithm>

#include "cpu/bucket.h"
#include "tf/op_kernel.h"

namespace gradcomp::tf {

// Engine runs it, on the CPU or on a GPU: bucket.cc says what one has.
template <class Engine>
class EncodeKernel {
 public:
  bool Init(Attrs& attrs) {
    std::vector<DType> types;
    if (!attrs.Get(&codec_) || !attrs.Get("T", &types) ||
        !attrs.Get("num_residuals", &num_residuals_)) {
      return false;
    }
    num_tensors_ = static_cast<int64_t>(types.size());
    if (num_residuals_ != 0 && num_residuals_ != num_tensors_) {
      return attrs.Fail(kInvalidArgument, std::to_string(num_residuals_) + " residuals for " +
                                              std::to_string(num_tensors_) + " gradients");
    }
    return true;
  }

  bool Compute(typename Engine::Call& call) const {
    const int64_t after_tensors = num_tensors_ + num_residuals_;
    std::vector<TensorPtr> gradients, residuals, new_residuals;
    std::vector<Segment> segments;
    Rng rng;
    TensorPtr payload;
    if (!call.GetInputs(0, num_tensors_, &gradients) ||
        !call.GetInputs(num_tensors_, num_residuals_, &residuals) ||
        !call.GetSegments(after_tensors, &segments) || !call.GetRng(after_tensors + 1, &rng) ||
        !AllocateResiduals(call, gradients, residuals, &new_residuals) ||
        !AllocatePayload(call, gradients, segments, &payload)) {
      return false;
    }
    std::vector<ConstTensor> tensors;
    for (const TensorPtr& gradient : gradients) {
      tensors.push_back({Data<void>(gradient), ToDType(TF_TensorType(gradient.get())),
                         TF_TensorElementCount(gradient.get())});
    }
    std::vector<const float*> old_data;
    std::vector<float*> new_data;
    for (const TensorPtr& residual : residuals) old_data.push_back(Data<float>(residual));
    for (const TensorPtr& residual : new_residuals) new_data.push_back(Data<float>(residual));
    const bool feedback = num_residuals_ > 0;
    return Engine::Encode(call, codec_, tensors, feedback ? old_data.data() : nullptr,
                          feedback ? new_data.data() : nullptr, segments, rng,
                          Data<uint8_t>(payload), TF_TensorElementCount(payload.get()));
  }

 private:
  static bool AllocateResiduals(Call& call, const std::vector<TensorPtr>& gradients,
                                const std::vector<TensorPtr>& residuals,
                                std::vector<TensorPtr>* new_residuals) {
    new_residuals->resize(residuals.size());
    for (size_t i = 0; i < residuals.size(); ++i) {
      const int64_t got = TF_TensorElementCount(residuals[i].get());
      const int64_t want = TF_TensorElementCount(gradients[i].get());
      if (got != want) {
        return call.Fail(kInvalidArgument, "residual " + std::to_string(i) + " has shape " +
                                               ShapeString(residuals[i].get()) + ", its gradient " +
                                               ShapeString(gradients[i].get()));
      }
      if (!call.AllocateOutput(1 + static_cast<int>(i), kFloat, Dims(gradients[i].get()),
                               &(*new_residuals)[i])) {
        return false;
      }
    }
    return true;
  }

  // A wrong table cannot ask for any amount of memory: it gets none, and Encode says which row is
  // wrong.
  bool AllocatePayload(Call& call, const std::vector<TensorPtr>& gradients,
                       const std::vector<Segment>& segments, TensorPtr* payload) const {
    int64_t numel = 0;
    for (const TensorPtr& gradient : gradients) numel += TF_TensorElementCount(gradient.get());
    int64_t size = 0;
    if (TotalLength(segments) == numel) {
      size = std::max<int64_t>(0, PayloadSize(codec_, segments.data(), segments.size()));
    }
    return call.AllocateOutput(0, kUint8, {size}, payload);
  }

  Codec codec_;
  int64_t num_tensors_ = 0;
  int64_t num_residuals_ = 0;
};

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_ENCODE_H_
