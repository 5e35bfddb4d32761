// From rows to launches: tables of rows that travel as kernel parameters.

#ifndef GRADCOMP_CUDA_LAUNCH_H_
#define GRADCOMP_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/codec.h"
#include "cuda/rows.h"

namespace gradcomp::cuda {

// Threads of a block, in all kernels but those that say otherwise.
constexpr int kThreads = 256;
// Parameters of a kernel end at 4 KiB on all devices and toolkits.
constexpr int kRowsPerLaunch = 48;
constexpr int64_t kMaxTiles = 0x7fffffff;

// Rows of one launch. Row i has the tiles first_tile[i] … first_tile[i + 1] - 1, at least one.
template <typename Row>
struct Table {
  int32_t count;
  uint32_t first_tile[kRowsPerLaunch + 1];
  Row rows[kRowsPerLaunch];
};

// The row that tile number `tile` belongs to.
template <typename Row>
__device__ __forceinline__ int FindRow(const Table<Row>& table, uint32_t tile) {
  int low = 0, high = table.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Launches `kernel` with a block of threads for each of `blocks` > 0.
template <typename... Params, typename... Args>
cudaError_t Launch(void (*kernel)(Params...), int64_t blocks, int threads, cudaStream_t stream,
                   const Args&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

// Collects rows, one after the other, and calls `cudaError_t launch(const Table<Row>&, blocks)`
// whenever a table is full.
template <typename Row, typename LaunchTable>
class TableBuilder {
 public:
  explicit TableBuilder(const LaunchTable& launch) : launch_(launch) {
    table_.count = 0;
    table_.first_tile[0] = 0;
  }

  // `tiles` of the row; a row without any is left out.
  cudaError_t Add(const Row& row, int64_t tiles) {
    if (tiles > kMaxTiles) return cudaErrorInvalidValue;
    if (tiles == 0) return cudaSuccess;
    if (table_.count == kRowsPerLaunch || table_.first_tile[table_.count] + tiles > kMaxTiles) {
      if (const cudaError_t error = Flush(); error != cudaSuccess) return error;
    }
    table_.rows[table_.count] = row;
    table_.first_tile[table_.count + 1] =
        table_.first_tile[table_.count] + static_cast<uint32_t>(tiles);
    ++table_.count;
    return cudaSuccess;
  }

  // Launches what is left.
  cudaError_t Flush() {
    if (table_.count == 0) return cudaSuccess;
    const cudaError_t error = launch_(table_, int64_t{table_.first_tile[table_.count]});
    table_.count = 0;
    return error;
  }

 private:
  const LaunchTable& launch_;
  Table<Row> table_;
};

// Calls `cudaError_t launch(const Table<Row>&, int64_t blocks)` until all rows are through.
// `rows.ForEach(visit)` calls `cudaError_t visit(const Row&)` for each until one fails, and
// `int64_t tiles_of(const Row&)` is the number of blocks that a row needs.
template <typename Row, typename Rows, typename TilesOf, typename LaunchTable>
cudaError_t ForEachTable(const Rows& rows, const TilesOf& tiles_of, const LaunchTable& launch) {
  TableBuilder<Row, LaunchTable> builder(launch);
  const cudaError_t error =
      rows.ForEach([&](const Row& row) { return builder.Add(row, tiles_of(row)); });
  return error == cudaSuccess ? builder.Flush() : error;
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_LAUNCH_H_
