// Rows as kernels see them: each knows its payload.

#ifndef GRADCOMP_CUDA_TASKS_H_
#define GRADCOMP_CUDA_TASKS_H_

#include <cstdint>

#include "core/codec.h"
#include "cuda/launch.h"
#include "cuda/rows.h"

namespace gradcomp::cuda {

struct EncodeTask {
  EncodeRow row;
  uint8_t* payload;
  int64_t blocks_before;  // those of the rows before, where there are scales
};
struct DecodeTask {
  DecodeRow row;
  const uint8_t* payload;  // rank 0's
};

// Calls `cudaError_t launch(const Table<EncodeTask>&, int64_t blocks)` until all rows are through;
// `int64_t tiles_of(const EncodeRow&)` is the number of blocks that a row needs.
template <typename TilesOf, typename LaunchTable>
cudaError_t ForEachTable(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                         uint8_t* payload, const TilesOf& tiles_of, const LaunchTable& launch) {
  TableBuilder<EncodeTask, LaunchTable> builder(launch);
  int64_t blocks = 0;
  for (int64_t i = 0; i < num_rows; ++i) {
    payload += rows[i].gap;
    const cudaError_t error = builder.Add({rows[i], payload, blocks}, tiles_of(rows[i]));
    if (error != cudaSuccess) return error;
    if (codec.block_size > 0) blocks += CeilDiv(rows[i].length, codec.block_size);
    payload += PayloadSize(codec, rows[i].length, rows[i].kept);
  }
  return builder.Flush();
}

template <typename TilesOf, typename LaunchTable>
cudaError_t ForEachTable(const Codec& codec, const DecodeRow* rows, int64_t num_rows,
                         const uint8_t* payloads, const TilesOf& tiles_of,
                         const LaunchTable& launch) {
  TableBuilder<DecodeTask, LaunchTable> builder(launch);
  for (int64_t i = 0; i < num_rows; ++i) {
    const cudaError_t error = builder.Add({rows[i], payloads}, tiles_of(rows[i]));
    if (error != cudaSuccess) return error;
    payloads += PayloadSize(codec, rows[i].length, rows[i].kept);
  }
  return builder.Flush();
}

// Sets the report to: all finite, no bad row.
inline cudaError_t ClearReport(DecodeReport* report, cudaStream_t stream) {
  return cudaMemsetAsync(report, 0xff, sizeof(DecodeReport), stream);
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_TASKS_H_
