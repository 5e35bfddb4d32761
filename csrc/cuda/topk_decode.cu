// Top-k's sum over ranks, one tile of the output after the other: it is cleared, added to, scaled
// and written by a block that holds it in shared memory.

#include "core/elias_fano.h"
#include "cuda/elias_fano.h"
#include "cuda/tensors.h"
#include "cuda/topk.h"
#include "cuda/values.h"

namespace gradcomp::cuda {
namespace {

constexpr int kQuads = 4;
constexpr int kTile = 4 * kQuads * kThreads;

// A segment, and its parts of the workspace.
struct TopKDecodeRow {
  DecodeRow row;
  const uint8_t* payload;  // rank 0's
  uint32_t* positions;     // each rank's
  uint32_t* ones;          // for EliasFanoDecode
  uint32_t* starts;        // each rank's first position in each tile, and after the last
  uint32_t number;         // of the row in the bucket
};

GRADCOMP_HOST_DEVICE inline int64_t NumTiles(const TopKDecodeRow& row) {
  return CeilDiv(row.row.length, kTile);
}

struct TopKDecodeRows {
  const Codec& codec;
  const DecodeRow* rows;
  int64_t num_rows;
  int64_t world;
  const uint8_t* payload;
  void* workspace;

  template <typename Visit>
  cudaError_t ForEach(const Visit& visit) const {
    const uint8_t* from = payload;
    uintptr_t free = reinterpret_cast<uintptr_t>(workspace);
    for (int64_t i = 0; i < num_rows; ++i) {
      const TopKDecodeRow row = Make(i, from, &free);
      if (const cudaError_t error = visit(row); error != cudaSuccess) return error;
      from += PayloadSize(codec, row.row.length, row.row.kept);
    }
    return cudaSuccess;
  }

  // Takes its parts of the workspace, from *free on.
  TopKDecodeRow Make(int64_t index, const uint8_t* from, uintptr_t* free) const {
    TopKDecodeRow made = {};
    made.row = rows[index];
    made.payload = from;
    made.number = static_cast<uint32_t>(index);
    const int64_t n = made.row.length, k = made.row.kept;
    if (k == 0) return made;
    const auto take = [&](int64_t count) {
      uint32_t* const part = reinterpret_cast<uint32_t*>(*free);
      *free += static_cast<uintptr_t>(CeilDiv(world * count, 4) * 16);
      return part;
    };
    made.positions = take(k);
    made.ones = take(EliasFanoBlocksOfRank(static_cast<uint32_t>(n), static_cast<uint32_t>(k)));
    made.starts = take(NumTiles(made) + 1);
    return made;
  }
};

// The codes of positions, as rows of their own.
struct Codes {
  const TopKDecodeRows& rows;

  template <typename Visit>
  cudaError_t ForEach(const Visit& visit) const {
    return rows.ForEach([&](const TopKDecodeRow& row) {
      if (row.row.kept == 0) return cudaSuccess;
      return visit(CodesRow{row.payload, row.positions, row.ones,
                            static_cast<uint32_t>(row.row.length),
                            static_cast<uint32_t>(row.row.kept), row.number});
    });
  }
};

cudaError_t DecodePositions(const TopKDecodeRows& rows, int64_t stride, DecodeReport* report,
                            cudaStream_t stream) {
  const auto blocks_of = [&](const CodesRow& row) {
    return rows.world * EliasFanoBlocksOfRank(row.n, row.k);
  };
  const cudaError_t error = ForEachTable<CodesRow>(
      Codes{rows}, blocks_of, [&](const Table<CodesRow>& table, int64_t blocks) {
        return EliasFanoCount(table, blocks, stride, stream);
      });
  if (error != cudaSuccess) return error;
  return ForEachTable<CodesRow>(Codes{rows}, blocks_of,
                                [&](const Table<CodesRow>& table, int64_t blocks) {
                                  return EliasFanoDecode(table, blocks, stride, report, stream);
                                });
}

// The first of k increasing positions that is not below `least`.
__device__ __forceinline__ uint32_t LowerBound(const uint32_t* positions, uint32_t k,
                                               int64_t least) {
  uint32_t low = 0, high = k;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (positions[middle] < least) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// A thread for each rank and tile: their searches wait for memory together.
__global__ void __launch_bounds__(kThreads)
    topk_starts_kernel(const __grid_constant__ Table<TopKDecodeRow> table, int64_t world) {
  const int index = FindRow(table, blockIdx.x);
  const TopKDecodeRow& row = table.rows[index];
  const int64_t i = int64_t{blockIdx.x - table.first_tile[index]} * kThreads + threadIdx.x;
  const int64_t places = NumTiles(row) + 1;
  if (i >= world * places) return;
  const uint32_t k = static_cast<uint32_t>(row.row.kept);
  row.starts[i] = LowerBound(row.positions + i / places * k, k, i % places * kTile);
}

// Adds a rank's values in a tile, which starts at position `first`.
__device__ __forceinline__ void AddValues(const TopKDecodeRow& row, const Codec& codec,
                                          int64_t stride, int64_t rank, int64_t tile, float* sum) {
  const uint32_t k = static_cast<uint32_t>(row.row.kept);
  const uint32_t* positions = row.positions + rank * k;
  const uint32_t* starts = row.starts + rank * (NumTiles(row) + 1);
  const uint8_t* values = row.payload + rank * stride + EliasFanoSize(row.row.length, k);
  const uint32_t end = starts[tile + 1];
  for (uint32_t i = starts[tile] + threadIdx.x; i < end; i += kThreads) {
    sum[positions[i] % kTile] += ValueAt(codec, values, k, i);
  }
}

// Bytes moved an element: the output's 4 (2), and for each of a rank's kept elements its value and
// 4 for its position, from the L2 cache.
__global__ void __launch_bounds__(kThreads)
    topk_decode_kernel(const __grid_constant__ Table<TopKDecodeRow> table, Codec codec,
                       int64_t stride, int64_t world, float scale, DecodeReport* report) {
  __shared__ float4 sums[kTile / 4];
  const int index = FindRow(table, blockIdx.x);
  const TopKDecodeRow& row = table.rows[index];
  const int64_t tile = blockIdx.x - table.first_tile[index];
  const int64_t first = tile * kTile;
  const int size = static_cast<int>(min(int64_t{kTile}, row.row.length - first));
  const auto place = [](int q) { return static_cast<int>(threadIdx.x + q * kThreads); };
  GRADCOMP_UNROLL(4)
  for (int q = 0; q < kQuads; ++q) sums[place(q)] = make_float4(0, 0, 0, 0);
  __syncthreads();
  for (int64_t rank = 0; row.row.kept > 0 && rank < world; ++rank) {
    AddValues(row, codec, stride, rank, tile, reinterpret_cast<float*>(sums));
    __syncthreads();
  }
  float sum[kQuads][4];
  GRADCOMP_UNROLL(4)
  for (int q = 0; q < kQuads; ++q) {
    const float4 quad = sums[place(q)];
    sum[q][0] = quad.x, sum[q][1] = quad.y, sum[q][2] = quad.z, sum[q][3] = quad.w;
  }
  const auto at = [&](int q) { return first + 4 * place(q); };
  const auto count = [&](int q) { return size - 4 * place(q); };
  if (!StoreScaled(row.row, at, count, sum, scale)) report->finite = 0;
}

}  // namespace

int64_t TopKDecodeWorkspace(const DecodeRow* rows, int64_t num_rows, int64_t world) {
  const Codec codec = {Family::kTopK};
  const TopKDecodeRows all = {codec, rows, num_rows, world, nullptr, nullptr};
  uintptr_t free = 0;
  for (int64_t i = 0; i < num_rows; ++i) all.Make(i, nullptr, &free);
  return static_cast<int64_t>(free);
}

cudaError_t TopKDecode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                       const DecodeRow* rows, int64_t num_rows, float scale, DecodeReport* report,
                       void* workspace, cudaStream_t stream) {
  const TopKDecodeRows all = {codec, rows, num_rows, world, payloads, workspace};
  cudaError_t error = DecodePositions(all, stride, report, stream);
  if (error != cudaSuccess) return error;
  error = ForEachTable<TopKDecodeRow>(
      all,
      [&](const TopKDecodeRow& row) {
        return row.row.kept == 0 ? 0 : CeilDiv(world * (NumTiles(row) + 1), kThreads);
      },
      [&](const Table<TopKDecodeRow>& table, int64_t blocks) {
        return Launch(topk_starts_kernel, blocks, kThreads, stream, table, world);
      });
  if (error != cudaSuccess) return error;
  return ForEachTable<TopKDecodeRow>(
      all, [](const TopKDecodeRow& row) { return NumTiles(row); },
      [&](const Table<TopKDecodeRow>& table, int64_t blocks) {
        return Launch(topk_decode_kernel, blocks, kThreads, stream, table, ValuesCodec(codec),
                      stride, world, scale, report);
      });
}

}  // namespace gradcomp::cuda
