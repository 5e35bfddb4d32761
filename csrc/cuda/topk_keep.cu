// What is kept, in order of position, and what is lost of it.

#include "core/cast.h"
#include "core/elias_fano.h"
#include "cuda/scan.h"
#include "cuda/topk_search.h"

namespace gradcomp::cuda {
namespace {

// Takes what the payload loses of a kept element x to the residual. A kept -0 decodes to +0, the
// difference of which from -0 is -0: a zero stays as it is.
__device__ __forceinline__ void StoreLost(const TopKRow& row, uint32_t position, float x,
                                          float lost) {
  if (x != 0 || lost != 0) row.new_residual[position] = lost;
}

// Sends values by a cast.
template <typename Cast>
class CastValues {
 public:
  static constexpr bool kHasBlocks = false;

  __device__ __forceinline__ CastValues(const TopKRow& row, const TopKWorkspace&)
      : row_(row), payload_(row.payload + EliasFanoSize(row.length, row.kept)) {}

  __device__ __forceinline__ void Keep(uint32_t place, uint32_t position, float x) const {
    const typename Cast::Wire wire = Cast::Encode(x);
    std::memcpy(payload_ + uint64_t{place} * sizeof(wire), &wire, sizeof(wire));
    if (row_.new_residual == nullptr) return;
    StoreLost(row_, position, x, Canonical(x - Cast::Decode(wire)));
  }

 private:
  const TopKRow& row_;
  uint8_t* payload_;
};

// Leaves them to the kernels of their codec.
class BlockValues {
 public:
  static constexpr bool kHasBlocks = true;

  __device__ __forceinline__ BlockValues(const TopKRow&, const TopKWorkspace& parts)
      : values_(parts.kept_values) {}

  __device__ __forceinline__ void Keep(uint32_t place, uint32_t, float x) const {
    values_[place] = x;
  }

 private:
  float* values_;
};

// A warp has a tile, and 32 elements of it at a time.
template <typename Values>
__global__ void __launch_bounds__(kThreads)
    topk_keep_kernel(const __grid_constant__ Table<TopKRow> table) {
  const int index = FindRow(table, blockIdx.x);
  const TopKRow& row = table.rows[index];
  const TopKWorkspace parts = WorkspaceOf(row, Values::kHasBlocks);
  const Values values(row, parts);
  const Searched searched(row, parts);
  const Found found = parts.state->found[kLevels];
  ForEachTileOfWarp(row, ShareOf(table, index), [&](uint32_t tile) {
    const Chunk chunk = searched.OfTile(tile);
    uint32_t larger = static_cast<uint32_t>(parts.counts[tile] >> 32);
    uint32_t equal = static_cast<uint32_t>(parts.counts[tile]);
    for (uint32_t first = 0; first < chunk.count; first += 32) {
      const bool exists = first + Lane() < chunk.count;
      const uint32_t i = chunk.first + first + Lane();
      const float x = exists ? searched.value(i) : 0.0f;
      const bool is_larger = exists && Magnitude(x) > found.prefix;
      const bool is_equal = exists && Magnitude(x) == found.prefix;
      const unsigned larger_lanes = __ballot_sync(kAllLanes, is_larger);
      const unsigned equal_lanes = __ballot_sync(kAllLanes, is_equal);
      const uint32_t ties = equal + __popc(equal_lanes & LanesBelow());
      if (is_larger || (is_equal && ties < found.rank)) {
        const uint32_t place = larger + __popc(larger_lanes & LanesBelow()) + min(ties, found.rank);
        const uint32_t position = searched.position(i);
        parts.kept[place] = position;
        values.Keep(place, position, x);
      }
      larger += __popc(larger_lanes);
      equal += __popc(equal_lanes);
    }
  });
}

__global__ void __launch_bounds__(kThreads)
    topk_lost_kernel(const __grid_constant__ Table<TopKRow> table) {
  const int index = FindRow(table, blockIdx.x);
  const TopKRow& row = table.rows[index];
  const TopKWorkspace parts = WorkspaceOf(row, true);
  const uint64_t i = uint64_t{ShareOf(table, index).index} * kThreads + threadIdx.x;
  if (i < row.kept) StoreLost(row, parts.kept[i], parts.kept_values[i], parts.lost[i]);
}

template <typename Values>
cudaError_t KeepAs(const TopKRows& rows, cudaStream_t stream) {
  return ForEachTable<TopKRow>(
      rows, SearchBlocks, [&](const Table<TopKRow>& table, int64_t blocks) {
        return Launch(topk_keep_kernel<Values>, blocks, kThreads, stream, table);
      });
}

}  // namespace

cudaError_t TopKKeep(const TopKRows& rows, cudaStream_t stream) {
  switch (rows.codec.values) {
    case Family::kFloat32:
      return KeepAs<CastValues<Float32Cast>>(rows, stream);
    case Family::kFloat16:
      return KeepAs<CastValues<Float16Cast>>(rows, stream);
    case Family::kBFloat16:
      return KeepAs<CastValues<BFloat16Cast>>(rows, stream);
    default:
      return KeepAs<BlockValues>(rows, stream);
  }
}

cudaError_t TopKStoreLost(const TopKRows& rows, cudaStream_t stream) {
  return ForEachTable<TopKRow>(
      rows,
      [](const TopKRow& row) {
        return row.new_residual == nullptr ? 0 : CeilDiv(row.kept, kThreads);
      },
      [&](const Table<TopKRow>& table, int64_t blocks) {
        return Launch(topk_lost_kernel, blocks, kThreads, stream, table);
      });
}

}  // namespace gradcomp::cuda
