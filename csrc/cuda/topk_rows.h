// The segments of a top-k encoder as its kernels see them, their parts of the workspace, and the
// steps of the encoder.

#ifndef GRADCOMP_CUDA_TOPK_ROWS_H_
#define GRADCOMP_CUDA_TOPK_ROWS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/codec.h"
#include "core/macros.h"
#include "cuda/launch.h"
#include "cuda/rows.h"

namespace gradcomp::cuda {

// Elements that a block scans at a time.
constexpr int kScanTile = 4096;
// Consecutive elements of a sample: 32 bytes, the least that memory delivers.
constexpr uint32_t kSampleUnit = 8;

// The 31 bits of a magnitude are looked at in three levels, the highest first.
constexpr int kLevels = 3;
GRADCOMP_HOST_DEVICE constexpr int LevelShift(int level) { return 10 * (kLevels - 1 - level); }
GRADCOMP_HOST_DEVICE constexpr uint32_t LevelBins(int level) { return level == 0 ? 2048 : 1024; }

// Before level l, the bits of the k-th largest magnitude above those of the level are `prefix`, and
// it is the `rank`-th largest of the magnitudes that begin so. After the last level the prefix is
// all of it, and the rank is how many elements of just this magnitude are kept.
struct Found {
  uint32_t prefix;
  uint32_t rank;
};

struct TopKState {
  uint32_t threshold;   // the least magnitude of a candidate
  uint32_t candidates;  // elements that reach it, be there room for them or not
  Found found[kLevels + 1];
  uint32_t histogram[kLevels][LevelBins(0)];
};

// A run of candidates, or of elements, in order of position.
struct Chunk {
  uint32_t first;
  uint32_t count;
};

// A segment; `kept` is 0 if all of it only goes to the residual.
struct TopKRow {
  const void* gradient;
  const float* residual;
  float* new_residual;
  uint8_t* payload;
  uintptr_t workspace;
  uint32_t length;
  uint32_t kept;
  uint32_t capacity;      // candidates that there is room for
  uint32_t sample_units;  // none: everything is a candidate
  uint32_t sample_rank;   // the threshold is this one of the sample, the largest first
  uint32_t stream;
  DType dtype;
};

// The parts of the workspace of a segment that keeps something.
struct TopKWorkspace {
  TopKState* state;
  Chunk* chunks;         // the candidates of tiles
  uint64_t* counts;      // of tiles: larger than the k-th magnitude << 32 | equal to it; after
                         // TopKSelect of all tiles before
  uint32_t* sample;      // magnitudes
  uint32_t* candidates;  // positions
  float* values;         // of candidates
  uint32_t* kept;        // positions
  float* kept_values;    // if the values' codec has blocks
  float* lost;           // likewise, what it loses of them
  int64_t size;          // bytes
};

GRADCOMP_HOST_DEVICE inline uint32_t NumTiles(const TopKRow& row) {
  return row.length / kScanTile + (row.length % kScanTile != 0);
}

// `has_blocks` matters to the last two parts.
GRADCOMP_HOST_DEVICE inline TopKWorkspace WorkspaceOf(const TopKRow& row, bool has_blocks = false) {
  int64_t size = 0;
  const auto take = [&](int64_t bytes) {
    const uintptr_t part = row.workspace + static_cast<uintptr_t>(size);
    size += CeilDiv(bytes, 16) * 16;
    return part;
  };
  const int64_t tiles = NumTiles(row), values = has_blocks ? row.kept : 0;
  TopKWorkspace parts;
  parts.state = reinterpret_cast<TopKState*>(take(sizeof(TopKState)));
  parts.chunks = reinterpret_cast<Chunk*>(take(tiles * 8));
  parts.counts = reinterpret_cast<uint64_t*>(take(tiles * 8));
  parts.sample = reinterpret_cast<uint32_t*>(take(int64_t{row.sample_units} * kSampleUnit * 4));
  parts.candidates = reinterpret_cast<uint32_t*>(take(int64_t{row.capacity} * 4));
  parts.values = reinterpret_cast<float*>(take(int64_t{row.capacity} * 4));
  parts.kept = reinterpret_cast<uint32_t*>(take(int64_t{row.kept} * 4));
  parts.kept_values = reinterpret_cast<float*>(take(values * 4));
  parts.lost = reinterpret_cast<float*>(take(values * 4));
  parts.size = size;
  return parts;
}

// The row of a segment.
TopKRow MakeTopKRow(const EncodeRow& row, uint8_t* payload, uintptr_t workspace);

// All segments of a bucket, made one by one.
struct TopKRows {
  const Codec& codec;
  const EncodeRow* rows;
  int64_t num_rows;
  uint8_t* payload;
  void* workspace;

  // Calls `cudaError_t visit(const TopKRow&)` for each until one fails.
  template <typename Visit>
  cudaError_t ForEach(const Visit& visit) const {
    uint8_t* to = payload;
    uintptr_t free = reinterpret_cast<uintptr_t>(workspace);
    for (int64_t i = 0; i < num_rows; ++i) {
      const TopKRow row = MakeTopKRow(rows[i], to, free);
      if (const cudaError_t error = visit(row); error != cudaSuccess) return error;
      to += PayloadSize(codec, rows[i].length, rows[i].kept);
      free += static_cast<uintptr_t>(WorkspaceSize(row));
    }
    return cudaSuccess;
  }

  // Of the row's parts.
  int64_t WorkspaceSize(const TopKRow& row) const {
    return row.kept == 0 ? 0 : WorkspaceOf(row, HasScales(codec.values)).size;
  }
};

// The steps of the encoder, each for all rows.
// Sets the thresholds, and clears the states.
cudaError_t TopKSample(const TopKRows& rows, cudaStream_t stream);
// Stores the sums in the new residuals, and collects the candidates.
cudaError_t TopKScan(const TopKRows& rows, cudaStream_t stream);
// Finds the k-th largest magnitudes, and counts what is kept of the tiles before each.
cudaError_t TopKSelect(const TopKRows& rows, cudaStream_t stream);
// Writes the positions of what is kept, and the values: as their codec sends them, with what it
// loses in the new residuals, or to the workspace if it has blocks.
cudaError_t TopKKeep(const TopKRows& rows, cudaStream_t stream);
// Takes what was lost of the values from the workspace to the new residuals.
cudaError_t TopKStoreLost(const TopKRows& rows, cudaStream_t stream);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_TOPK_ROWS_H_
