// Payloads start at any byte, and pass through shared memory: there each thread finds its codes at
// any place, while global memory sees aligned accesses of 16 bytes.

#ifndef GRADCOMP_CUDA_PAYLOADS_H_
#define GRADCOMP_CUDA_PAYLOADS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/macros.h"
#include "cuda/launch.h"

namespace gradcomp::cuda {

// uint4s of shared memory for `bytes` of a payload: their first byte may lie anywhere in the first,
// and ReadWord() and CopyOut() look at one word more.
GRADCOMP_HOST_DEVICE constexpr int StagedVectors(int bytes) { return (bytes + 15) / 16 + 2; }

// Where in a vector a payload that is staged begins.
__device__ __forceinline__ int PhaseOf(const uint8_t* payload) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(payload) % 16);
}

// How many of its `size` bytes lie before the first vector that is all its own.
__device__ __forceinline__ int HeadOf(const uint8_t* payload, int size) {
  return min(size, (16 - PhaseOf(payload)) % 16);
}

// Four bytes from byte `at` of shared memory, little endian.
__device__ __forceinline__ uint32_t ReadWord(const uint4* staged, int at) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(staged) + at / 4;
  const int shift = at % 4 * 8;
  return shift == 0 ? words[0] : __funnelshift_r(words[0], words[1], shift);
}

// Writes the first `size` bytes of `staged` to `payload`; all threads of the block call it, after a
// barrier.
__device__ __forceinline__ void CopyOut(const uint4* staged, uint8_t* payload, int size) {
  const int head = HeadOf(payload, size);
  const int vectors = (size - head) / 16;
  for (int v = threadIdx.x; v < vectors; v += kThreads) {
    const int at = head + 16 * v;
    const uint4 bytes = head == 0 ? staged[v]
                                  : make_uint4(ReadWord(staged, at), ReadWord(staged, at + 4),
                                               ReadWord(staged, at + 8), ReadWord(staged, at + 12));
    __stcs(reinterpret_cast<uint4*>(payload + at), bytes);
  }
  const int edges = size - 16 * vectors;
  const uint8_t* from = reinterpret_cast<const uint8_t*>(staged);
  for (int i = threadIdx.x; i < edges; i += kThreads) {
    const int at = i < head ? i : i + 16 * vectors;
    payload[at] = from[at];
  }
}

// Copies `size` bytes of each of `ranks` payloads, `stride` bytes apart, to staged[rank] from byte
// PhaseOf(its payload) on; all threads of the block call it, before a barrier. All loads are under
// way before the first store waits for one.
template <int kRanks, int kVectors>
__device__ __forceinline__ void CopyIn(const uint8_t* payloads, int64_t stride, int ranks, int size,
                                       uint4 (&staged)[kRanks][kVectors]) {
  constexpr int kEach = (kVectors - 2 + kThreads - 1) / kThreads;
  uint4 vectors[kRanks][kEach];
  GRADCOMP_UNROLL(4)
  for (int rank = 0; rank < kRanks; ++rank) {
    const uint8_t* from = payloads + rank * stride;
    const int head = HeadOf(from, size);
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < kEach; ++i) {
      const int at = head + 16 * (threadIdx.x + i * kThreads);
      if (rank < ranks && at + 16 <= size) {
        vectors[rank][i] = *reinterpret_cast<const uint4*>(from + at);
      }
    }
  }
  GRADCOMP_UNROLL(4)
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank >= ranks) break;
    const uint8_t* from = payloads + rank * stride;
    const int head = HeadOf(from, size);
    const int phase = PhaseOf(from);
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < kEach; ++i) {
      const int at = head + 16 * (threadIdx.x + i * kThreads);
      if (at + 16 <= size) staged[rank][(phase + at) / 16] = vectors[rank][i];
    }
    const int inside = (size - head) / 16 * 16;
    uint8_t* to = reinterpret_cast<uint8_t*>(staged[rank]) + phase;
    for (int i = threadIdx.x; i < size - inside; i += kThreads) {
      const int at = i < head ? i : i + inside;
      to[at] = from[at];
    }
  }
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_PAYLOADS_H_
