// Elements of tensors in registers: each thread has runs of four elements, *quads*, which it reads
// and writes with one instruction of 16 bytes (8 for 16-bit dtypes) where all of them are complete
// and aligned, and one by one where they are not, as at the ends of tensors.
//
// at(q) is the number, counted from where the row's pointers point, of the first element of a
// thread's quad q, and count(q) says how many there are from it on: at least four where all of the
// quad exist, none or a negative number where none does.

#ifndef GRADCOMP_CUDA_TENSORS_H_
#define GRADCOMP_CUDA_TENSORS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/float_bits.h"
#include "core/macros.h"
#include "cuda/rows.h"

namespace gradcomp::cuda {

struct Float32 {
  using Bits = uint32_t;
  using Quad = uint4;
  static __device__ __forceinline__ float Widen(Bits bits) { return FloatFromBits(bits); }
  static __device__ __forceinline__ Bits Narrow(float x) { return FloatBits(x); }
  static constexpr uint32_t kInfinity = kInfinityBits;
};
struct Float16 {
  using Bits = uint16_t;
  using Quad = uint2;
  static __device__ __forceinline__ float Widen(Bits bits) { return FloatFromHalf(bits); }
  static __device__ __forceinline__ Bits Narrow(float x) { return HalfFromFloat(x); }
  static constexpr uint32_t kInfinity = kHalfInfinityBits;
};
struct BFloat16 {
  using Bits = uint16_t;
  using Quad = uint2;
  static __device__ __forceinline__ float Widen(Bits bits) { return FloatFromBFloat16(bits); }
  static __device__ __forceinline__ Bits Narrow(float x) { return BFloat16FromFloat(x); }
  static constexpr uint32_t kInfinity = kBFloat16InfinityBits;
};

// Element i of a quad's bits.
__device__ __forceinline__ uint32_t BitsOf(const uint4& quad, int i) {
  return i == 0 ? quad.x : i == 1 ? quad.y : i == 2 ? quad.z : quad.w;
}
__device__ __forceinline__ uint16_t BitsOf(const uint2& quad, int i) {
  return static_cast<uint16_t>((i < 2 ? quad.x : quad.y) >> 16 * (i % 2));
}
__device__ __forceinline__ void Join(const uint32_t (&bits)[4], uint4* quad) {
  *quad = make_uint4(bits[0], bits[1], bits[2], bits[3]);
}
__device__ __forceinline__ void Join(const uint16_t (&bits)[4], uint2* quad) {
  *quad = make_uint2(bits[0] | static_cast<uint32_t>(bits[1]) << 16,
                     bits[2] | static_cast<uint32_t>(bits[3]) << 16);
}

__device__ __forceinline__ bool IsAligned(const void* pointer, uintptr_t to) {
  return reinterpret_cast<uintptr_t>(pointer) % to == 0;
}

// Whether all quads of a thread exist and are aligned.
template <int kQuads, typename At, typename Count>
__device__ __forceinline__ bool IsWhole(const At& at, const Count& count) {
  bool whole = true;
  GRADCOMP_UNROLL(8)
  for (int q = 0; q < kQuads; ++q) whole = whole && count(q) >= 4 && at(q) % 4 == 0;
  return whole;
}

__device__ __forceinline__ bool IsAligned(const void* data, DType dtype) {
  return IsAligned(data, dtype == DType::kFloat32 ? 16 : 8);
}

__device__ __forceinline__ int64_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// The rest of a row from element `first` on.
__device__ __forceinline__ EncodeRow Advance(EncodeRow row, int64_t first) {
  row.gradient = static_cast<const uint8_t*>(row.gradient) + first * SizeOf(row.dtype);
  if (row.residual != nullptr) row.residual += first;
  if (row.new_residual != nullptr) row.new_residual += first;
  row.start += first;
  row.length -= first;
  return row;
}
__device__ __forceinline__ DecodeRow Advance(DecodeRow row, int64_t first) {
  row.output = static_cast<uint8_t*>(row.output) + first * SizeOf(row.dtype);
  row.length -= first;
  return row;
}

// The element of a tensor, widened.
__device__ __forceinline__ float LoadOne(const void* data, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(data)[at];
    case DType::kFloat16:
      return FloatFromHalf(static_cast<const uint16_t*>(data)[at]);
    case DType::kBFloat16:
      return FloatFromBFloat16(static_cast<const uint16_t*>(data)[at]);
  }
  return 0;
}

// One element of gradient + residual.
__device__ __forceinline__ float LoadCorrected(const EncodeRow& row, int64_t at) {
  const float x = LoadOne(row.gradient, row.dtype, at);
  return Canonical(row.residual == nullptr ? x : x + row.residual[at]);
}

// Adds the gradient to x, which holds the residual.
template <typename Element, int kQuads, typename At, typename Count>
__device__ __forceinline__ void AddGradient(const void* gradient, bool whole, const At& at,
                                            const Count& count, float (&x)[kQuads][4]) {
  using Bits = typename Element::Bits;
  using Quad = typename Element::Quad;
  const Bits* from = static_cast<const Bits*>(gradient);
  if (whole) {
    Quad quads[kQuads];
    GRADCOMP_UNROLL(8)
    for (int q = 0; q < kQuads; ++q) quads[q] = *reinterpret_cast<const Quad*>(from + at(q));
    GRADCOMP_UNROLL(8)
    for (int q = 0; q < kQuads; ++q) {
      GRADCOMP_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        x[q][i] = Canonical(Element::Widen(BitsOf(quads[q], i)) + x[q][i]);
      }
    }
  } else {
    GRADCOMP_UNROLL(8)
    for (int q = 0; q < kQuads; ++q) {
      GRADCOMP_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        if (i < count(q)) x[q][i] = Canonical(Element::Widen(from[at(q) + i]) + x[q][i]);
      }
    }
  }
}

// x = gradient + residual; zeros for what does not exist.
template <int kQuads, typename At, typename Count>
__device__ __forceinline__ void LoadCorrected(const EncodeRow& row, const At& at,
                                              const Count& count, float (&x)[kQuads][4]) {
  const bool whole = IsAligned(row.gradient, row.dtype) && IsAligned(row.residual, 16) &&
                     IsWhole<kQuads>(at, count);
  // Residuals first: nothing is computed of them alone, so that their loads are under way together
  // with the gradient's.
  const float* residual = row.residual;
  if (residual != nullptr && whole) {
    GRADCOMP_UNROLL(8)
    for (int q = 0; q < kQuads; ++q) {
      const float4 quad = *reinterpret_cast<const float4*>(residual + at(q));
      x[q][0] = quad.x, x[q][1] = quad.y, x[q][2] = quad.z, x[q][3] = quad.w;
    }
  } else {
    GRADCOMP_UNROLL(8)
    for (int q = 0; q < kQuads; ++q) {
      GRADCOMP_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        const bool exists = i < count(q);
        // Adding -0 leaves every number as it is.
        x[q][i] = exists ? residual != nullptr ? residual[at(q) + i] : -0.0f : 0.0f;
      }
    }
  }
  switch (row.dtype) {
    case DType::kFloat32:
      return AddGradient<Float32>(row.gradient, whole, at, count, x);
    case DType::kFloat16:
      return AddGradient<Float16>(row.gradient, whole, at, count, x);
    case DType::kBFloat16:
      return AddGradient<BFloat16>(row.gradient, whole, at, count, x);
  }
}

// Writes bits of Element::Narrow.
template <typename Element, int kQuads, typename At, typename Count>
__device__ __forceinline__ void StoreQuads(void* to, bool whole, const At& at, const Count& count,
                                           const typename Element::Bits (&bits)[kQuads][4]) {
  using Bits = typename Element::Bits;
  using Quad = typename Element::Quad;
  Bits* out = static_cast<Bits*>(to);
  GRADCOMP_UNROLL(8)
  for (int q = 0; q < kQuads; ++q) {
    if (whole) {
      Quad quad;
      Join(bits[q], &quad);
      // Not read again soon. An ordinary store, moreover, may be split where the compiler sees no
      // alignment.
      __stcs(reinterpret_cast<Quad*>(out + at(q)), quad);
    } else {
      GRADCOMP_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        if (i < count(q)) out[at(q) + i] = bits[q][i];
      }
    }
  }
}

// Writes what a payload loses, as it is.
template <int kQuads, typename At, typename Count>
__device__ __forceinline__ void StoreResidual(const EncodeRow& row, const At& at,
                                              const Count& count, const float (&lost)[kQuads][4]) {
  const bool whole = IsAligned(row.new_residual, 16) && IsWhole<kQuads>(at, count);
  uint32_t bits[kQuads][4];
  GRADCOMP_UNROLL(8)
  for (int q = 0; q < kQuads; ++q) {
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < 4; ++i) bits[q][i] = FloatBits(lost[q][i]);
  }
  StoreQuads<Float32>(row.new_residual, whole, at, count, bits);
}

template <typename Element, int kQuads, typename At, typename Count>
__device__ __forceinline__ bool StoreScaledAs(void* to, bool whole, const At& at,
                                              const Count& count, const float (&sum)[kQuads][4],
                                              float scale) {
  typename Element::Bits bits[kQuads][4];
  bool finite = true;
  GRADCOMP_UNROLL(8)
  for (int q = 0; q < kQuads; ++q) {
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      bits[q][i] = Element::Narrow(Canonical(sum[q][i] * scale));
      const uint32_t magnitude = bits[q][i] << (32 - 8 * sizeof(bits[q][i])) & 0x7fffffff;
      constexpr uint32_t kInfinity = Element::kInfinity << (32 - 8 * sizeof(bits[q][i]));
      finite = finite && (magnitude < kInfinity || i >= count(q));
    }
  }
  StoreQuads<Element>(to, whole, at, count, bits);
  return finite;
}

// Writes sum * scale; says whether all of it is finite.
template <int kQuads, typename At, typename Count>
__device__ __forceinline__ bool StoreScaled(const DecodeRow& row, const At& at, const Count& count,
                                            const float (&sum)[kQuads][4], float scale) {
  const bool whole = IsAligned(row.output, row.dtype) && IsWhole<kQuads>(at, count);
  switch (row.dtype) {
    case DType::kFloat32:
      return StoreScaledAs<Float32>(row.output, whole, at, count, sum, scale);
    case DType::kFloat16:
      return StoreScaledAs<Float16>(row.output, whole, at, count, sum, scale);
    case DType::kBFloat16:
      return StoreScaledAs<BFloat16>(row.output, whole, at, count, sum, scale);
  }
  return true;
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_TENSORS_H_
