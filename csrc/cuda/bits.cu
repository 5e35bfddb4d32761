#include "core/bits.h"
#include "core/codec.h"
#include "cuda/bits.h"
#include "cuda/launch.h"
#include "cuda/payloads.h"

namespace gradcomp::cuda {
namespace {

// Four times eight codes a thread. Packing, two loads of 16 bytes are under way a thread, and eight
// blocks fit on a multiprocessor of an H200: 64 KiB, where it needs 25.
constexpr int kEights = 4;
constexpr int kTile = 8 * kEights * kThreads;

// Codes of this block's tile.
__device__ __forceinline__ int TileSize(int64_t n) {
  return static_cast<int>(min(int64_t{kTile}, n - int64_t{blockIdx.x} * kTile));
}
// A thread's i-th eight codes begin here in the tile: those of neighbouring threads are neighbours.
__device__ __forceinline__ int PlaceOf(int i) { return 8 * (threadIdx.x + i * kThreads); }

// Bytes moved a code: 1 in, kBits / 8 out; the floor. Both sides pass through shared memory, so
// that global memory sees 16 bytes a thread wherever they start.
template <int kBits>
__global__ void __launch_bounds__(kThreads)
    pack_bits_kernel(const uint8_t* __restrict__ codes, int64_t n, uint8_t* __restrict__ packed) {
  __shared__ uint4 staged[1][StagedVectors(kTile)];
  __shared__ uint4 out[StagedVectors(kTile * kBits / 8)];
  const int size = TileSize(n);
  const uint8_t* const from = codes + int64_t{blockIdx.x} * kTile;
  CopyIn(from, 0, 1, size, staged);
  __syncthreads();
  GRADCOMP_UNROLL(4)
  for (int i = 0; i < kEights; ++i) {
    const int at = PhaseOf(from) + PlaceOf(i);
    const uint64_t high = ReadWord(staged[0], at + 4);
    uint64_t eight = high << 32 | ReadWord(staged[0], at);
    const int left = size - PlaceOf(i);
    if (left < 8) eight = left > 0 ? eight & ((uint64_t{1} << 8 * left) - 1) : 0;
    reinterpret_cast<PackedEight<kBits>*>(out)[PlaceOf(i) / 8] = PackEight<kBits>(eight);
  }
  __syncthreads();
  CopyOut(out, packed + int64_t{blockIdx.x} * (kTile * kBits / 8),
          static_cast<int>(PackedSize(size, kBits)));
}

// Bytes moved a code: kBits / 8 in, 1 out; the floor.
template <int kBits>
__global__ void __launch_bounds__(kThreads)
    unpack_bits_kernel(const uint8_t* __restrict__ packed, int64_t n, uint8_t* __restrict__ codes) {
  __shared__ uint4 staged[1][StagedVectors(kTile * kBits / 8)];
  __shared__ uint4 out[StagedVectors(kTile)];
  const int size = TileSize(n);
  const uint8_t* const from = packed + int64_t{blockIdx.x} * (kTile * kBits / 8);
  CopyIn(from, 0, 1, static_cast<int>(PackedSize(size, kBits)), staged);
  __syncthreads();
  GRADCOMP_UNROLL(4)
  for (int i = 0; i < kEights; ++i) {
    const uint32_t word = ReadWord(staged[0], PhaseOf(from) + PlaceOf(i) * kBits / 8);
    const uint64_t eight = UnpackEight<kBits>(static_cast<PackedEight<kBits>>(word));
    reinterpret_cast<uint2*>(out)[PlaceOf(i) / 8] =
        make_uint2(static_cast<uint32_t>(eight), static_cast<uint32_t>(eight >> 32));
  }
  __syncthreads();
  CopyOut(out, codes + int64_t{blockIdx.x} * kTile, size);
}

// One of the kernels of 1, 2 and 4 bits, over all codes; codes of 8 bits are copied.
using Kernel = void(const uint8_t*, int64_t, uint8_t*);
cudaError_t Convert(Kernel* of_1, Kernel* of_2, Kernel* of_4, const uint8_t* from, int64_t n,
                    int bits, uint8_t* to, cudaStream_t stream) {
  const int64_t blocks = CeilDiv(n, kTile);
  if (!IsCodeWidth(bits) || blocks > kMaxTiles) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  if (bits == 8) {
    return cudaMemcpyAsync(to, from, static_cast<size_t>(n), cudaMemcpyDeviceToDevice, stream);
  }
  return Launch(bits == 1 ? of_1 : bits == 2 ? of_2 : of_4, blocks, kThreads, stream, from, n, to);
}

}  // namespace

cudaError_t PackCodes(const uint8_t* codes, int64_t n, int bits, uint8_t* packed,
                      cudaStream_t stream) {
  return Convert(pack_bits_kernel<1>, pack_bits_kernel<2>, pack_bits_kernel<4>, codes, n, bits,
                 packed, stream);
}

cudaError_t UnpackCodes(const uint8_t* packed, int64_t n, int bits, uint8_t* codes,
                        cudaStream_t stream) {
  return Convert(unpack_bits_kernel<1>, unpack_bits_kernel<2>, unpack_bits_kernel<4>, packed, n,
                 bits, codes, stream);
}

}  // namespace gradcomp::cuda
