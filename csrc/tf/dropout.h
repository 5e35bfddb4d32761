// GradcompDrawMask and GradcompApplyMask: dropout by a mask of a bit an element.

#ifndef GRADCOMP_TF_DROPOUT_H_
#define GRADCOMP_TF_DROPOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/bits.h"
#include "core/codec.h"
#include "core/dropout.h"
#include "tf/op_kernel.h"

namespace gradcomp::tf {

// Engine runs it, on the CPU or on a GPU: dropout.cc says what one has.
template <class Engine>
class DrawMaskKernel {
 public:
  bool Init(Attrs& attrs) {
    int64_t bits = 0, threshold = 0;
    if (!attrs.Get("fraction_bits", &bits) || !attrs.Get("threshold", &threshold)) return false;
    if (!IsMaskDraw(bits, threshold)) {
      return attrs.Fail(kInvalidArgument, "fraction_bits is " + std::to_string(bits) +
                                              ", not 1 to 23, or threshold is " +
                                              std::to_string(threshold) + ", not 0 to 2^" +
                                              std::to_string(bits));
    }
    fraction_bits_ = static_cast<int>(bits);
    threshold_ = static_cast<uint32_t>(threshold);
    return true;
  }

  bool Compute(typename Engine::Call& call) const {
    TensorPtr key, counter, packed;
    std::vector<int64_t> shape;
    if (!GetWords(call, 0, 1, &key) || !GetWords(call, 1, 2, &counter) ||
        !call.GetShape(2, &shape)) {
      return false;
    }
    int64_t n = 1;
    for (int64_t dim : shape) n *= dim;
    return call.AllocateOutput(0, kUint8, {PackedSize(n, 1)}, &packed) &&
           Engine::Draw(call, Data<uint64_t>(key), Data<uint64_t>(counter), fraction_bits_,
                        threshold_, n, Data<uint8_t>(packed));
  }

 private:
  static bool GetWords(typename Engine::Call& call, int index, int64_t count, TensorPtr* words) {
    if (!call.GetInput(index, words)) return false;
    if (TF_TensorElementCount(words->get()) == count) return true;
    return call.Fail(kInvalidArgument, std::string(index == 0 ? "key" : "counter") + " has shape " +
                                           ShapeString(words->get()) + ", not [" +
                                           std::to_string(count) + "]");
  }

  int fraction_bits_ = 0;
  uint32_t threshold_ = 0;
};

template <class Engine>
class ApplyMaskKernel {
 public:
  bool Init(Attrs& attrs) {
    TF_DataType type;
    if (!attrs.GetType("T", &type)) return false;
    dtype_ = ToDType(type);
    return true;
  }

  bool Compute(typename Engine::Call& call) const {
    TensorPtr x, packed, y;
    float scale = 0;
    if (!call.GetInput(1, &packed) || !call.GetScale(2, &scale) || !call.GetInput(0, &x)) {
      return false;
    }
    const int64_t n = TF_TensorElementCount(x.get());
    const int64_t got = TF_TensorElementCount(packed.get());
    if (got != PackedSize(n, 1)) {
      return call.Fail(kInvalidArgument, "packed has " + std::to_string(got) + " bytes, and " +
                                             std::to_string(n) + " elements have " +
                                             std::to_string(PackedSize(n, 1)));
    }
    return call.ForwardInput(0, &x, &y) &&
           Engine::Apply(call, dtype_, Data<void>(x), Data<uint8_t>(packed), n, scale,
                         Data<void>(y));
  }

 private:
  DType dtype_ = DType::kFloat32;
};

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_DROPOUT_H_
