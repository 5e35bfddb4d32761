// GradcompDecode: the payloads of all ranks to the tensors of their scaled sum.

#include <algorithm>

#include "cpu/bucket.h"
#include "tf/op_kernel.h"

namespace gradcomp::tf {
namespace {

class DecodeKernel {
 public:
  bool Init(Attrs& attrs) {
    std::vector<int64_t> dims, ranks;
    if (!attrs.Get(&codec_) || !attrs.Get("world", &world_) || !attrs.Get("T", &dtypes_) ||
        !attrs.Get("dims", &dims) || !attrs.Get("ranks", &ranks)) {
      return false;
    }
    if (ranks.size() != dtypes_.size()) {
      return attrs.Fail(kInvalidArgument, std::to_string(ranks.size()) + " ranks for " +
                                              std::to_string(dtypes_.size()) + " tensors");
    }
    auto next = dims.begin();
    for (int64_t rank : ranks) {
      const int64_t left = dims.end() - next;
      if (rank < 0 || rank > std::min(left, kMaxRank)) {
        return attrs.Fail(kInvalidArgument, "ranks: " + std::to_string(rank) + " where " +
                                                std::to_string(left) + " dims are left, of " +
                                                std::to_string(kMaxRank) + " allowed");
      }
      shapes_.emplace_back(next, next + rank);
      if (!CheckSize(attrs, shapes_.back())) return false;
      next += rank;
    }
    return next == dims.end() ||
           attrs.Fail(kInvalidArgument, "ranks leave " + std::to_string(dims.end() - next) +
                                            " of " + std::to_string(dims.size()) + " dims over");
  }

  bool Compute(Call& call) const {
    TensorPtr payloads, finite;
    std::vector<Segment> segments;
    float scale;
    if (!call.GetInput(0, &payloads) || !call.GetSegments(1, &segments) ||
        !call.GetScale(2, &scale)) {
      return false;
    }
    const int num_tensors = static_cast<int>(shapes_.size());
    std::vector<TensorPtr> outputs(num_tensors);
    std::vector<MutableTensor> tensors;
    for (int i = 0; i < num_tensors; ++i) {
      if (!call.AllocateOutput(i, ToTensorFlow(dtypes_[i]), shapes_[i], &outputs[i])) return false;
      tensors.push_back(
          {Data<void>(outputs[i]), dtypes_[i], TF_TensorElementCount(outputs[i].get())});
    }
    if (!call.AllocateOutput(num_tensors, kBool, {}, &finite)) return false;
    return call.Check(segments,
                      Decode(codec_, Data<uint8_t>(payloads), TF_TensorElementCount(payloads.get()),
                             world_, segments.data(), static_cast<int64_t>(segments.size()), scale,
                             tensors.data(), num_tensors, Data<bool>(finite)));
  }

 private:
  // TensorFlow ends the process where it is asked for a tensor of more.
  static constexpr int64_t kMaxRank = 254;

  static bool CheckSize(Attrs& attrs, const std::vector<int64_t>& shape) {
    int64_t bytes = sizeof(float);
    for (int64_t dim : shape) {
      if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) {
        return attrs.Fail(kInvalidArgument, "dims: " + std::to_string(dim) +
                                                " is negative or makes the tensor too large");
      }
    }
    return true;
  }

  Codec codec_;
  int64_t world_ = 0;
  std::vector<DType> dtypes_;
  std::vector<std::vector<int64_t>> shapes_;
};

}  // namespace

void RegisterDecodeKernel() { RegisterCpuKernel<DecodeKernel>("GradcompDecode"); }

}  // namespace gradcomp::tf
