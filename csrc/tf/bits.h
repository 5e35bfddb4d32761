// GradcompPackBits and GradcompUnpackBits: masks and small codes, several to a byte.

#ifndef GRADCOMP_TF_BITS_H_
#define GRADCOMP_TF_BITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/bits.h"
#include "tf/op_kernel.h"

namespace gradcomp::tf {

inline bool GetBits(Attrs& attrs, int* bits) {
  int64_t value = 0;
  if (!attrs.Get("bits", &value)) return false;
  if (!IsCodeWidth(value)) {
    return attrs.Fail(kInvalidArgument, "bits is " + std::to_string(value) + ", not 1, 2, 4 or 8");
  }
  *bits = static_cast<int>(value);
  return true;
}

// Engine runs it, on the CPU or on a GPU: bits.cc says what one has.
template <class Engine>
class PackBitsKernel {
 public:
  bool Init(Attrs& attrs) { return GetBits(attrs, &bits_); }

  bool Compute(typename Engine::Call& call) const {
    TensorPtr codes, packed;
    if (!call.GetInput(0, &codes)) return false;
    const int64_t n = TF_TensorElementCount(codes.get());
    return call.AllocateOutput(0, kUint8, {PackedSize(n, bits_)}, &packed) &&
           Engine::Pack(call, Data<uint8_t>(codes), n, bits_, Data<uint8_t>(packed));
  }

 private:
  int bits_ = 0;
};

template <class Engine>
class UnpackBitsKernel {
 public:
  bool Init(Attrs& attrs) { return GetBits(attrs, &bits_) && attrs.GetType("T", &type_); }

  bool Compute(typename Engine::Call& call) const {
    TensorPtr packed, codes;
    std::vector<int64_t> shape;
    if (!call.GetInput(0, &packed) || !call.GetShape(1, &shape)) return false;
    int64_t n = 1;
    for (int64_t dim : shape) n *= dim;
    const int64_t got = TF_TensorElementCount(packed.get());
    if (got != PackedSize(n, bits_)) {
      return call.Fail(kInvalidArgument, "packed has " + std::to_string(got) + " bytes, and " +
                                             std::to_string(n) + " codes have " +
                                             std::to_string(PackedSize(n, bits_)));
    }
    return call.AllocateOutput(0, type_, shape, &codes) &&
           Engine::Unpack(call, Data<uint8_t>(packed), n, bits_, Data<uint8_t>(codes));
  }

 private:
  int bits_ = 0;
  TF_DataType type_ = kUint8;
};

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_BITS_H_
