// GradcompDecode: the payloads of all ranks to the tensors of their scaled sum.

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
    size_t next = 0;
    for (int64_t rank : ranks) {
      if (rank < 0 || rank > static_cast<int64_t>(dims.size() - next)) {
        return attrs.Fail(kInvalidArgument, "ranks: " + std::to_string(rank) + " of " +
                                                std::to_string(dims.size() - next) +
                                                " dimensions that are left");
      }
      shapes_.emplace_back(dims.begin() + next, dims.begin() + next + rank);
      next += rank;
    }
    if (next != dims.size()) {
      return attrs.Fail(kInvalidArgument, "dims: " + std::to_string(dims.size()) +
                                              " dimensions, but ranks add up to " +
                                              std::to_string(next));
    }
    for (int64_t dim : dims) {
      if (dim < 0) return attrs.Fail(kInvalidArgument, "dims: negative: " + std::to_string(dim));
    }
    return true;
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
  Codec codec_;
  int64_t world_ = 0;
  std::vector<DType> dtypes_;
  std::vector<std::vector<int64_t>> shapes_;
};

}  // namespace

void RegisterDecodeKernel() { RegisterCpuKernel<DecodeKernel>("GradcompDecode"); }

}  // namespace gradcomp::tf
