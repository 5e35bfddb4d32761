// GradcompDecode: the payloads of all ranks to the tensors of their scaled sum.

#ifndef GRADCOMP_TF_DECODE_H_
#define GRADCOMP_TF_DECODE_H_

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "cpu/bucket.h"
#include "tf/op_kernel.h"

namespace gradcomp::tf {

// Engine runs it, on the CPU or on a GPU: bucket.cc says what one has.
template <class Engine>
class DecodeKernel {
 public:
  bool Init(Attrs& attrs) {
    if (!attrs.Get(&codec_) || !attrs.Get("world", &world_) || !attrs.Get("T", &dtypes_) ||
        !attrs.Get("ranks", &ranks_)) {
      return false;
    }
    if (ranks_.size() != dtypes_.size()) {
      return attrs.Fail(kInvalidArgument, std::to_string(ranks_.size()) + " ranks for " +
                                              std::to_string(dtypes_.size()) + " tensors");
    }
    for (int64_t rank : ranks_) {
      if (rank < 0 || rank > kMaxRank) {
        return attrs.Fail(kInvalidArgument, "ranks: " + std::to_string(rank) + " is not in [0, " +
                                                std::to_string(kMaxRank) + "]");
      }
    }
    return true;
  }

  bool Compute(typename Engine::Call& call) const {
    TensorPtr payloads, finite;
    std::vector<Segment> segments;
    std::vector<std::vector<int64_t>> shapes;
    float scale;
    if (!call.GetInput(0, &payloads) || !call.GetSegments(1, &segments) ||
        !call.GetScale(2, &scale) || !GetShapes(call, 3, &shapes)) {
      return false;
    }
    const int num_tensors = static_cast<int>(shapes.size());
    std::vector<TensorPtr> outputs(num_tensors);
    std::vector<MutableTensor> tensors;
    for (int i = 0; i < num_tensors; ++i) {
      if (!call.AllocateOutput(i, ToTensorFlow(dtypes_[i]), shapes[i], &outputs[i])) return false;
      tensors.push_back(
          {Data<void>(outputs[i]), dtypes_[i], TF_TensorElementCount(outputs[i].get())});
    }
    if (!call.AllocateOutput(num_tensors, kBool, {}, &finite)) return false;
    return Engine::Decode(call, codec_, Data<uint8_t>(payloads),
                          TF_TensorElementCount(payloads.get()), world_, segments, scale, tensors,
                          Data<bool>(finite));
  }

 private:
  // TensorFlow ends the process where it is asked for a tensor of more.
  static constexpr int64_t kMaxRank = 254;

  // The tensors' shapes, of an input that holds their dimensions one after the other.
  bool GetShapes(Call& call, int index, std::vector<std::vector<int64_t>>* shapes) const {
    TensorPtr tensor;
    if (!call.GetInput(index, &tensor)) return false;
    const int64_t wanted = std::accumulate(ranks_.begin(), ranks_.end(), int64_t{0});
    if (TF_NumDims(tensor.get()) != 1 || TF_TensorElementCount(tensor.get()) != wanted) {
      return call.Fail(kInvalidArgument, "dims has shape " + ShapeString(tensor.get()) + ", not [" +
                                             std::to_string(wanted) + "], the sum of the ranks");
    }
    const int64_t* next = Data<const int64_t>(tensor);
    for (int64_t rank : ranks_) {
      shapes->emplace_back(next, next + rank);
      if (!CheckSize(call, shapes->back())) return false;
      next += rank;
    }
    return true;
  }

  static bool CheckSize(Call& call, const std::vector<int64_t>& shape) {
    int64_t bytes = sizeof(float);
    for (int64_t dim : shape) {
      if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) {
        return call.Fail(kInvalidArgument, "dims: " + std::to_string(dim) +
                                               " is negative or makes the tensor too large");
      }
    }
    return true;
  }

  Codec codec_;
  int64_t world_ = 0;
  std::vector<DType> dtypes_;
  std::vector<int64_t> ranks_;
};

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_DECODE_H_
