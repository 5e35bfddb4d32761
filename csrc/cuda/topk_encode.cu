#include <cmath>

#include "cuda/bucket.h"
#include "cuda/elias_fano.h"
#include "cuda/topk.h"
#include "cuda/topk_rows.h"

namespace gradcomp::cuda {
namespace {

// Below it, sampling costs more than the candidates that it saves.
constexpr int64_t kSampledLength = 1 << 12;
// A 32nd of a short segment, and enough of a long one to estimate 1 % of it within 4 %.
constexpr int64_t kSampledPart = 32;
constexpr int64_t kMaxSampleUnits = 1 << 13;

// The positions of what is kept, as rows of their own.
struct KeptPositions {
  const TopKRows& rows;

  template <typename Visit>
  cudaError_t ForEach(const Visit& visit) const {
    return rows.ForEach([&](const TopKRow& row) {
      if (row.kept == 0) return cudaSuccess;
      return visit(PositionsRow{WorkspaceOf(row).kept, row.payload, row.length, row.kept});
    });
  }
};

cudaError_t EncodePositions(const TopKRows& rows, cudaStream_t stream) {
  return ForEachTable<PositionsRow>(KeptPositions{rows}, EliasFanoEncodeBlocks,
                                    [&](const Table<PositionsRow>& table, int64_t blocks) {
                                      return EliasFanoEncode(table, blocks, stream);
                                    });
}

// What the codec of the values is to encode, and where what it loses goes.
EncodeRow ValuesOf(const TopKRow& row) {
  const TopKWorkspace parts = WorkspaceOf(row, true);
  float* const lost = row.new_residual != nullptr ? parts.lost : nullptr;
  return {parts.kept_values, nullptr, lost, 0, row.kept, 0, row.stream, DType::kFloat32};
}

// Bytes of a bucket's workspace: all rows' parts, then what the codec of the values needs.
struct Sizes {
  int64_t parts = 0;
  int64_t values = 0;
};

Sizes SizesOf(const TopKRows& rows) {
  Sizes sizes;
  for (int64_t i = 0; i < rows.num_rows; ++i) {
    const TopKRow row = MakeTopKRow(rows.rows[i], nullptr, 0);
    const EncodeRow values = ValuesOf(row);
    sizes.parts += rows.WorkspaceSize(row);
    sizes.values += EncodeWorkspace(ValuesCodec(rows.codec), &values, 1);
  }
  return sizes;
}

// By the kernels of a codec that has blocks, as many rows at a time as a launch takes. They follow
// one another on the stream, and use the same workspace.
cudaError_t EncodeValues(const TopKRows& rows, const Rng& rng, cudaStream_t stream) {
  const Codec codec = ValuesCodec(rows.codec);
  const Sizes sizes = SizesOf(rows);
  void* const workspace = static_cast<uint8_t*>(rows.workspace) + sizes.parts;
  EncodeRow some[kRowsPerLaunch];
  int64_t count = 0;
  uint8_t *payload = nullptr, *end = nullptr;
  const auto encode = [&] {
    return Encode(codec, some, count, rng, payload, workspace, sizes.values, stream);
  };
  const cudaError_t error = rows.ForEach([&](const TopKRow& row) {
    if (row.kept == 0) return cudaSuccess;
    if (count == kRowsPerLaunch) {
      if (const cudaError_t failed = encode(); failed != cudaSuccess) return failed;
      count = 0;
    }
    uint8_t* const to = row.payload + EliasFanoSize(row.length, row.kept);
    if (count == 0) payload = end = to;
    some[count] = ValuesOf(row);
    some[count].gap = to - end;
    end = to + PayloadSize(codec, row.kept, 0);
    ++count;
    return cudaSuccess;
  });
  return error == cudaSuccess ? encode() : error;
}

}  // namespace

TopKRow MakeTopKRow(const EncodeRow& row, uint8_t* payload, uintptr_t workspace) {
  const int64_t n = row.length, k = row.kept;
  TopKRow made = {row.gradient,
                  row.residual,
                  row.new_residual,
                  payload,
                  workspace,
                  static_cast<uint32_t>(n),
                  static_cast<uint32_t>(k),
                  static_cast<uint32_t>(k == 0 ? 0 : n),
                  0,
                  0,
                  row.stream,
                  row.dtype};
  if (n < kSampledLength || k == 0) return made;
  const int64_t units = min(kMaxSampleUnits, n / (kSampleUnit * kSampledPart));
  const double size = static_cast<double>(units * kSampleUnit);
  const double expected = static_cast<double>(k) / static_cast<double>(n) * size;
  // Four standard deviations of the sample's count, and some for the smallest.
  const double rank = std::floor(expected + 4 * std::sqrt(expected) + 4);
  if (rank >= size) return made;
  made.sample_units = static_cast<uint32_t>(units);
  made.sample_rank = static_cast<uint32_t>(rank);
  // Six standard deviations above what the threshold stands for.
  const double most = (rank + 6 * std::sqrt(rank)) / size * static_cast<double>(n);
  made.capacity = static_cast<uint32_t>(min(n, static_cast<int64_t>(most)));
  return made;
}

int64_t TopKEncodeWorkspace(const Codec& codec, const EncodeRow* rows, int64_t num_rows) {
  const Sizes sizes = SizesOf({codec, rows, num_rows, nullptr, nullptr});
  return sizes.parts + sizes.values;
}

cudaError_t TopKEncode(const Codec& codec, const EncodeRow* rows, int64_t num_rows, const Rng& rng,
                       uint8_t* payload, void* workspace, cudaStream_t stream) {
  const TopKRows all = {codec, rows, num_rows, payload, workspace};
  cudaError_t error = TopKSample(all, stream);
  if (error == cudaSuccess) error = TopKScan(all, stream);
  if (error == cudaSuccess) error = TopKSelect(all, stream);
  if (error == cudaSuccess) error = TopKKeep(all, stream);
  if (error == cudaSuccess) error = EncodePositions(all, stream);
  if (error != cudaSuccess || !HasScales(codec.values)) return error;
  error = EncodeValues(all, rng, stream);
  return error == cudaSuccess ? TopKStoreLost(all, stream) : error;
}

}  // namespace gradcomp::cuda
