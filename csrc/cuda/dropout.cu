#include "core/bits.h"
#include "core/dropout.h"
#include "cuda/dropout.h"
#include "cuda/launch.h"
#include "cuda/tensors.h"

namespace gradcomp::cuda {
namespace {

// Elements that a block draws a mask for: a byte a thread, of two counters. A warp writes 32 bytes
// in a row, all of a sector; what takes the time are the generator's instructions, 25 an element.
constexpr int kDrawTile = 8 * kThreads;

__global__ void __launch_bounds__(kThreads)
    draw_mask_kernel(const uint64_t* __restrict__ key, const uint64_t* __restrict__ counter,
                     int fraction_bits, uint32_t threshold, int64_t n,
                     uint8_t* __restrict__ packed) {
  const int64_t byte = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t left = n - 8 * byte;
  if (left <= 0) return;
  const MaskDraw draw = {key[0], {counter[0], counter[1]}, fraction_bits, threshold};
  const uint64_t group = 2 * static_cast<uint64_t>(byte);
  uint32_t eight = KeptOfFour(draw, group) | KeptOfFour(draw, group + 1) << 4;
  if (left < 8) eight &= (1u << left) - 1;
  packed[byte] = static_cast<uint8_t>(eight);
}

// Two vectors of 16 bytes a thread are under way, and six blocks fit on a multiprocessor: 48 KiB,
// where an H200 needs 25.
constexpr int kVectors = 2;

template <class Element>
constexpr int kInWord = 4 / sizeof(typename Element::Bits);
template <class Element>
constexpr int kInVector = 4 * kInWord<Element>;
template <class Element>
constexpr int kTile = kInVector<Element> * kVectors * kThreads;

template <class Element>
__device__ __forceinline__ typename Element::Bits Masked(typename Element::Bits bits, bool kept,
                                                         float scale) {
  return Element::Narrow(MaskedFloat(Element::Widen(bits), kept, scale));
}

// The elements of a word; bit i of `kept` belongs to element i.
template <class Element>
__device__ __forceinline__ uint32_t MaskedWord(uint32_t word, uint32_t kept, float scale) {
  using Bits = typename Element::Bits;
  uint32_t masked = 0;
  GRADCOMP_UNROLL(2)
  for (int i = 0; i < kInWord<Element>; ++i) {
    const Bits bits = static_cast<Bits>(word >> 16 * i);
    masked |= static_cast<uint32_t>(Masked<Element>(bits, kept >> i & 1, scale)) << 16 * i;
  }
  return masked;
}

// Bytes moved an element: 4 (2) in, 4 (2) out, and 1/8 of the mask; the floor. `y` may be `x`: all
// that a thread writes, it has read before, and no other reads.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    apply_mask_kernel(const void* x, const uint8_t* __restrict__ packed, int64_t n, float scale,
                      void* y) {
  using Bits = typename Element::Bits;
  const int64_t first = int64_t{blockIdx.x} * kTile<Element>;
  const Bits* const from = static_cast<const Bits*>(x) + first;
  Bits* const to = static_cast<Bits*>(y) + first;
  const uint8_t* const mask = packed + first / 8;
  const int64_t size = n - first;
  if (size >= kTile<Element> && IsAligned(from, 16) && IsAligned(to, 16)) {
    const auto place = [](int v) { return kInVector<Element> * (threadIdx.x + v * kThreads); };
    uint4 vectors[kVectors];
    uint32_t kept[kVectors];
    GRADCOMP_UNROLL(2)
    for (int v = 0; v < kVectors; ++v) {
      vectors[v] = *reinterpret_cast<const uint4*>(from + place(v));
      kept[v] = static_cast<uint32_t>(mask[place(v) / 8]) >> place(v) % 8;
    }
    GRADCOMP_UNROLL(2)
    for (int v = 0; v < kVectors; ++v) {
      uint32_t words[4];
      GRADCOMP_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        words[i] =
            MaskedWord<Element>(BitsOf(vectors[v], i), kept[v] >> kInWord<Element> * i, scale);
      }
      uint4 masked;
      Join(words, &masked);
      __stcs(reinterpret_cast<uint4*>(to + place(v)), masked);
    }
    return;
  }
  const int rest = static_cast<int>(min(size, int64_t{kTile<Element>}));
  for (int i = threadIdx.x; i < rest; i += kThreads) {
    to[i] = Masked<Element>(from[i], mask[i / 8] >> i % 8 & 1, scale);
  }
}

template <class Element>
cudaError_t ApplyAs(const void* x, const uint8_t* packed, int64_t n, float scale, void* y,
                    cudaStream_t stream) {
  const int64_t blocks = CeilDiv(n, kTile<Element>);
  if (blocks > kMaxTiles) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  return Launch(apply_mask_kernel<Element>, blocks, kThreads, stream, x, packed, n, scale, y);
}

}  // namespace

cudaError_t DrawMask(const uint64_t* key, const uint64_t* counter, int fraction_bits,
                     uint32_t threshold, int64_t n, uint8_t* packed, cudaStream_t stream) {
  const int64_t blocks = CeilDiv(n, kDrawTile);
  if (!IsMaskDraw(fraction_bits, threshold) || blocks > kMaxTiles) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  return Launch(draw_mask_kernel, blocks, kThreads, stream, key, counter, fraction_bits, threshold,
                n, packed);
}

cudaError_t ApplyMask(DType dtype, const void* x, const uint8_t* packed, int64_t n, float scale,
                      void* y, cudaStream_t stream) {
  switch (dtype) {
    case DType::kFloat32:
      return ApplyAs<Float32>(x, packed, n, scale, y, stream);
    case DType::kFloat16:
      return ApplyAs<Float16>(x, packed, n, scale, y, stream);
    case DType::kBFloat16:
      return ApplyAs<BFloat16>(x, packed, n, scale, y, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gradcomp::cuda
