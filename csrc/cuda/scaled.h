// Kernels and launchers of the codecs that send a scale a block, for any of their coders: see
// QuantizeCoder in core/quantize.h. Each .cu of a family includes this for its own.
//
// Registers are bounded so that none spill on any device: left alone, ptxas aims at more threads.
//
// A scale comes from a number that stands for the block: for all coders but signs the largest
// magnitude. Of blocks that fit into a tile it is found in the tile; of larger ones by kernels that
// come before, in the workspace, a word a block.

#ifndef GRADCOMP_CUDA_SCALED_H_
#define GRADCOMP_CUDA_SCALED_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/block_scale.h"
#include "core/sign.h"
#include "core/threefry.h"
#include "cuda/block_tiles.h"
#include "cuda/dither.h"
#include "cuda/large_blocks.h"
#include "cuda/launch.h"
#include "cuda/payloads.h"
#include "cuda/sign_scale.h"
#include "cuda/tasks.h"
#include "cuda/tensors.h"

namespace gradcomp::cuda {

// Of blocks of a tile, the largest magnitude of each to largest[block], which holds 0 before; all
// threads call it. magnitudes[k] is that of the thread's word k. `largest` has kMaxBlocks elements.
template <typename Tile, int kWords>
__device__ __forceinline__ void FindLargest(const Tile& tile, uint32_t (&magnitudes)[kWords],
                                            uint32_t* largest) {
  // Lanes in groups that lie in one block, as large as they get: their maximum first.
  const int words = tile.words_per_block();
  const int group = min(32, words & -words);
  GRADCOMP_UNROLL(4)
  for (int k = 0; k < kWords; ++k) {
    for (int with = 1; with < group; with *= 2) {
      magnitudes[k] = max(magnitudes[k], __shfl_xor_sync(kWholeWarp, magnitudes[k], with));
    }
    // Words beyond the tile's blocks add zeros where nobody reads.
    if (threadIdx.x % group == 0) atomicMax(&largest[tile.WordOf(k).block], magnitudes[k]);
  }
}

// Writes four elements to shared memory, or the first `count` of them.
__device__ __forceinline__ void WriteSome(const float (&x)[4], int count, float* to) {
  if (count >= 4 && IsAligned(to, 16)) {
    *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
  } else {
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      if (i < count) to[i] = x[i];
    }
  }
}

// Of blocks of a tile, the bits of each one's SignCoder scale to scales[block]; x are the tile's
// elements. A warp takes a block, in the lanes of core/sign.h.
template <typename Tile>
__device__ __forceinline__ void FindSignScales(const Tile& tile, const float* x, uint32_t* scales) {
  const int lane = threadIdx.x % kSignLanes;
  for (int block = threadIdx.x / kSignLanes; block < tile.blocks();
       block += kThreads / kSignLanes) {
    const float* from = x + block * tile.SizeOf(0);
    const int size = tile.SizeOf(block);
    const auto element = [&](int64_t at) { return from[at]; };
    const uint32_t bits = FloatBits(SignScaleInWarp(size, lane, element));
    if (lane == 0) scales[block] = bits;
  }
}

// Bytes moved an element: the gradient's 4 (2), the codes' kBits / 8, and 8 with a residual; of
// large blocks gradient and residual once more, for their scales. The first is the floor. Each
// element is read once into a register by a coalesced quad, 64 bytes a thread and array under way
// (128 for signs), and leaves from there; codes and scales leave through shared memory.
template <typename Coder, bool kLarge>
__global__ void __launch_bounds__(kThreads, Coder::kBits == 1 ? 2 : 3)
    scaled_encode_kernel(const __grid_constant__ Table<EncodeTask> table, int64_t block_size,
                         Rng rng, const uint32_t* numbers) {
  using Shape = TileShape<Coder::kBits>;
  using Tile = BlockTile<Coder::kBits, kLarge>;
  constexpr int kPlanes = Shape::kPlanes;
  constexpr bool kSigns = std::is_same_v<Coder, SignCoder>;
  __shared__ uint4 codes[StagedVectors(Shape::kBytes)];
  __shared__ uint4 staged_scales[StagedVectors(4 * Shape::kMaxBlocks)];
  __shared__ uint32_t found[kLarge ? 1 : Shape::kMaxBlocks];
  __shared__ BlockScale scales[kLarge ? 1 : Shape::kMaxBlocks];
  __shared__ uint4 elements[kSigns && !kLarge ? Shape::kElements / 4 : 1];
  __shared__ uint4 random[Coder::kStochastic ? Shape::kElements / 8 : 1];

  const int index = FindRow(table, blockIdx.x);
  const Tile tile(table.rows[index].row.length, block_size, blockIdx.x - table.first_tile[index]);
  const EncodeRow row = Advance(table.rows[index].row, tile.first_element());
  const auto at = [&](int q) { return tile.WordOf(q / kPlanes).At(q % kPlanes); };
  const auto count = [&](int q) { return tile.WordOf(q / kPlanes).Count(q % kPlanes); };

  float x[Shape::kQuads][4];
  LoadCorrected(row, at, count, x);
  if constexpr (Coder::kStochastic) {
    const RandomStream stream = StreamOf(rng, row.stream);
    for (int run = 0; run < Tile::kRuns; ++run) {
      FillRandomBits(stream, row.start + tile.RunFirst(run), tile.RunSize(),
                     reinterpret_cast<uint16_t*>(random) + run * Tile::kRun);
    }
  }

  if constexpr (kLarge) {
    if (threadIdx.x == 0) found[0] = numbers[table.rows[index].blocks_before + tile.block()];
  } else if constexpr (kSigns) {
    float* staged = reinterpret_cast<float*>(elements);
    GRADCOMP_UNROLL(8)
    for (int q = 0; q < Shape::kQuads; ++q) {
      const int place = tile.PlaceOf(tile.WordOf(q / kPlanes), q % kPlanes);
      WriteSome(x[q], count(q), staged + place);
    }
    __syncthreads();
    FindSignScales(tile, staged, found);
  } else {
    for (int i = threadIdx.x; i < tile.blocks(); i += kThreads) found[i] = 0;
    uint32_t magnitudes[Shape::kWords] = {};
    GRADCOMP_UNROLL(8)
    for (int q = 0; q < Shape::kQuads; ++q) {
      GRADCOMP_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        magnitudes[q / kPlanes] = max(magnitudes[q / kPlanes], Magnitude(x[q][i]));
      }
    }
    __syncthreads();
    FindLargest(tile, magnitudes, found);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tile.blocks(); i += kThreads) {
    scales[i] = Coder::ScaleOf(found[i]);
    reinterpret_cast<float*>(staged_scales)[i] = scales[i].scale;
  }
  __syncthreads();

  GRADCOMP_UNROLL(4)
  for (int k = 0; k < Shape::kWords; ++k) {
    const auto word = tile.WordOf(k);
    if (word.size == 0) continue;
    const BlockScale scale = scales[word.block];
    uint32_t bytes = 0;
    GRADCOMP_UNROLL(8)
    for (int plane = 0; plane < kPlanes; ++plane) {
      float (&quad)[4] = x[k * kPlanes + plane];
      uint32_t dither[4] = {};
      if constexpr (Coder::kStochastic) {
        ReadRandomBits(reinterpret_cast<uint16_t*>(random), tile.PlaceOf(word, plane), dither);
      }
      GRADCOMP_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        const uint32_t code = Coder::Encode(scale, DitherFromBits(dither[i] << 4), &quad[i]);
        bytes |= code << (8 * i + plane * Coder::kBits);
      }
    }
    reinterpret_cast<uint32_t*>(codes)[threadIdx.x + k * kThreads] = bytes;
  }
  if (row.new_residual != nullptr) StoreResidual(row, at, count, x);
  __syncthreads();
  CopyOut(codes, table.rows[index].payload + tile.CodesAt(), tile.CodesSize());
  if (tile.has_first_word()) {
    CopyOut(staged_scales, table.rows[index].payload + tile.ScalesAt(), 4 * tile.blocks());
  }
}

// Bytes moved an element: kBits / 8 a rank, the output's 4 (2); the floor. Four ranks' codes are
// under way at a time (two of signs), 16 bytes a thread each, and every sum stays in a register.
template <typename Coder, bool kLarge>
__global__ void __launch_bounds__(kThreads, 2)
    scaled_decode_kernel(const __grid_constant__ Table<DecodeTask> table, int64_t block_size,
                         int64_t stride, int64_t world, float factor, DecodeReport* report) {
  using Shape = TileShape<Coder::kBits>;
  using Tile = BlockTile<Coder::kBits, kLarge>;
  constexpr int kPlanes = Shape::kPlanes;
  constexpr int kRanks = Coder::kBits == 1 ? 2 : 4;
  __shared__ uint4 codes[kRanks][StagedVectors(Shape::kBytes)];
  __shared__ uint4 scales[kRanks][StagedVectors(4 * Shape::kMaxBlocks)];

  const int index = FindRow(table, blockIdx.x);
  const Tile tile(table.rows[index].row.length, block_size, blockIdx.x - table.first_tile[index]);
  const DecodeRow row = Advance(table.rows[index].row, tile.first_element());
  const uint8_t* codes_of_first = table.rows[index].payload + tile.CodesAt();
  const uint8_t* scales_of_first = table.rows[index].payload + tile.ScalesAt();

  float sum[Shape::kQuads][4];
  for (int64_t first = 0; first < world; first += kRanks) {
    const int ranks = static_cast<int>(min(int64_t{kRanks}, world - first));
    CopyIn(codes_of_first + first * stride, stride, ranks, tile.CodesSize(), codes);
    CopyIn(scales_of_first + first * stride, stride, ranks, 4 * tile.blocks(), scales);
    __syncthreads();
    for (int rank = 0; rank < ranks; ++rank) {
      const int codes_phase = PhaseOf(codes_of_first + (first + rank) * stride);
      const int scales_phase = PhaseOf(scales_of_first + (first + rank) * stride);
      GRADCOMP_UNROLL(4)
      for (int k = 0; k < Shape::kWords; ++k) {
        const auto word = tile.WordOf(k);
        if (word.size == 0) continue;
        const int place = 4 * static_cast<int>(threadIdx.x + k * kThreads);
        const uint32_t bytes = ReadWord(codes[rank], codes_phase + place);
        const float scale = FloatFromBits(ReadWord(scales[rank], scales_phase + 4 * word.block));
        GRADCOMP_UNROLL(8)
        for (int plane = 0; plane < kPlanes; ++plane) {
          GRADCOMP_UNROLL(4)
          for (int i = 0; i < 4; ++i) {
            const uint8_t byte = static_cast<uint8_t>(bytes >> 8 * i);
            const float value = Coder::Decode(byte, plane * Coder::kBits, scale);
            float& to = sum[k * kPlanes + plane][i];
            to = first + rank == 0 ? value : to + value;
          }
        }
      }
    }
    __syncthreads();
  }
  const auto at = [&](int q) { return tile.WordOf(q / kPlanes).At(q % kPlanes); };
  const auto count = [&](int q) { return tile.WordOf(q / kPlanes).Count(q % kPlanes); };
  if (!StoreScaled(row, at, count, sum, factor)) report->finite = 0;
}

// Bytes of workspace of an encoder: none unless blocks are larger than tiles.
template <typename Coder>
int64_t ScaledEncodeWorkspace(const Codec& codec, const EncodeRow* rows, int64_t num_rows) {
  const bool large = TileShape<Coder::kBits>::IsLarge(codec.block_size);
  return large ? NumbersSize(codec, rows, num_rows) : 0;
}

template <typename Coder>
cudaError_t ScaledEncode(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                         const Rng& rng, uint8_t* payload, void* workspace, cudaStream_t stream) {
  using Shape = TileShape<Coder::kBits>;
  const int64_t block = codec.block_size;
  uint32_t* const numbers = static_cast<uint32_t*>(workspace);
  auto kernel = scaled_encode_kernel<Coder, false>;
  if (Shape::IsLarge(block)) {
    kernel = scaled_encode_kernel<Coder, true>;
    const cudaError_t error = std::is_same_v<Coder, SignCoder>
                                  ? FindSignScalesOfBlocks(codec, rows, num_rows, numbers, stream)
                                  : FindLargestOfBlocks(codec, rows, num_rows, numbers, stream);
    if (error != cudaSuccess) return error;
  }
  return ForEachTable(
      codec, rows, num_rows, payload,
      [&](const EncodeRow& row) { return Shape::TilesOf(row.length, block); },
      [&](const Table<EncodeTask>& table, int64_t blocks) {
        return Launch(kernel, blocks, kThreads, stream, table, block, rng, numbers);
      });
}

template <typename Coder>
cudaError_t ScaledDecode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                         const DecodeRow* rows, int64_t num_rows, float factor,
                         DecodeReport* report, cudaStream_t stream) {
  using Shape = TileShape<Coder::kBits>;
  const int64_t block = codec.block_size;
  const auto kernel = Shape::IsLarge(block) ? scaled_decode_kernel<Coder, true>
                                            : scaled_decode_kernel<Coder, false>;
  return ForEachTable(
      codec, rows, num_rows, payloads,
      [&](const DecodeRow& row) { return Shape::TilesOf(row.length, block); },
      [&](const Table<DecodeTask>& table, int64_t blocks) {
        return Launch(kernel, blocks, kThreads, stream, table, block, stride, world, factor,
                      report);
      });
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_SCALED_H_
