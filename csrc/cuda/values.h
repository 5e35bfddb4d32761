// Single values out of the payload of a block codec, for those who need few of them in any order.

#ifndef GRADCOMP_CUDA_VALUES_H_
#define GRADCOMP_CUDA_VALUES_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "core/cast.h"
#include "core/codec.h"
#include "core/float8.h"
#include "core/quantize.h"

namespace gradcomp::cuda {

// Element i of a payload of casts.
template <typename Cast>
__device__ __forceinline__ float CastValue(const uint8_t* payload, uint32_t i) {
  typename Cast::Wire wire;
  std::memcpy(&wire, payload + uint64_t{i} * sizeof(wire), sizeof(wire));
  return Cast::Decode(wire);
}

// Where a block codec has put an element: its scale, and its code in bits [shift, shift + bits) of
// a byte.
struct Placed {
  float scale;
  uint8_t byte;
  int shift;
};

// Byte j of a block of B bytes has in its plane p, `bits` bits, the code of element p * B + j.
__device__ __forceinline__ Placed FindCode(const Codec& codec, const uint8_t* payload, uint32_t n,
                                           uint32_t i) {
  const uint32_t bits = static_cast<uint32_t>(BitsOfCode(codec));
  const uint32_t block_size = static_cast<uint32_t>(min(codec.block_size, int64_t{n}));
  const uint32_t block = i / block_size;
  const uint32_t begin = block * block_size;
  const uint32_t bytes =
      static_cast<uint32_t>(CeilDiv(int64_t{min(block_size, n - begin)} * bits, 8));
  const uint8_t* codes = payload + 4 * CeilDiv(n, block_size) + uint64_t{begin} * bits / 8;
  Placed placed;
  std::memcpy(&placed.scale, payload + uint64_t{block} * 4, 4);
  placed.byte = codes[(i - begin) % bytes];
  placed.shift = static_cast<int>((i - begin) / bytes * bits);
  return placed;
}

template <int kBits>
__device__ __forceinline__ float QuantizedValue(const Placed& placed) {
  return static_cast<float>(CodeFromByte<kBits>(placed.byte, placed.shift)) * placed.scale;
}

// Element i of n in a payload of any codec but top-k.
__device__ __forceinline__ float ValueAt(const Codec& codec, const uint8_t* payload, uint32_t n,
                                         uint32_t i) {
  switch (codec.family) {
    case Family::kFloat16:
      return CastValue<Float16Cast>(payload, i);
    case Family::kBFloat16:
      return CastValue<BFloat16Cast>(payload, i);
    case Family::kFloat32:
    case Family::kTopK:
      return CastValue<Float32Cast>(payload, i);
    default:
      break;
  }
  const Placed placed = FindCode(codec, payload, n, i);
  const int8_t code = static_cast<int8_t>(placed.byte);
  switch (codec.family) {
    case Family::kFloat8E4M3:
      return FloatFromFloat8<E4M3>(code) * placed.scale;
    case Family::kFloat8E5M2:
      return FloatFromFloat8<E5M2>(code) * placed.scale;
    case Family::kSign: {
      const uint32_t sign = static_cast<uint32_t>(placed.byte) >> placed.shift << 31;
      return FloatFromBits(FloatBits(placed.scale) ^ sign);
    }
    default:
      return codec.bits == 8   ? QuantizedValue<8>(placed)
             : codec.bits == 4 ? QuantizedValue<4>(placed)
                               : QuantizedValue<2>(placed);
  }
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_VALUES_H_
