#include "core/cast.h"
#include "cuda/cast.h"
#include "cuda/launch.h"
#include "cuda/payloads.h"
#include "cuda/tasks.h"
#include "cuda/tensors.h"

namespace gradcomp::cuda {
namespace {

// Two quads a thread: 64 bytes under way with residuals, 32 without, and eight blocks a
// multiprocessor. 25 KiB under way hide the memory's latency on an H200.
constexpr int kQuads = 2;
constexpr int kTile = 4 * kQuads * kThreads;

int64_t TilesOf(int64_t length) { return CeilDiv(length, kTile); }

// The quads of a thread in a tile of some elements: those of neighbouring threads are neighbours.
__device__ __forceinline__ int PlaceOf(int q) { return 4 * (threadIdx.x + q * kThreads); }
__device__ __forceinline__ int CountOf(int q, int size) { return size - PlaceOf(q); }

// A quad to and from shared memory, at byte `at`.
__device__ __forceinline__ void WriteQuad(const uint32_t (&wire)[4], uint4* staged, int at) {
  Join(wire, staged + at / 16);
}
__device__ __forceinline__ void WriteQuad(const uint16_t (&wire)[4], uint4* staged, int at) {
  Join(wire, reinterpret_cast<uint2*>(staged) + at / 8);
}
template <typename Cast>
__device__ __forceinline__ void ReadQuad(const uint4* staged, int at, float (&value)[4]) {
  if constexpr (sizeof(typename Cast::Wire) == 4) {
    for (int i = 0; i < 4; ++i) value[i] = Cast::Decode(ReadWord(staged, at + 4 * i));
  } else {
    const uint2 quad = make_uint2(ReadWord(staged, at), ReadWord(staged, at + 4));
    for (int i = 0; i < 4; ++i) value[i] = Cast::Decode(BitsOf(quad, i));
  }
}

// Bytes moved an element: the gradient's 4 (2), the wire's 2 (4), and 8 with a residual; that is
// the floor, since everything is touched once. Tensors go through registers by quads, the payload
// goes out through shared memory.
template <typename Cast>
__global__ void __launch_bounds__(kThreads)
    cast_encode_kernel(const __grid_constant__ Table<EncodeTask> table) {
  using Wire = typename Cast::Wire;
  __shared__ uint4 staged[StagedVectors(kTile * sizeof(Wire))];
  const int index = FindRow(table, blockIdx.x);
  const int64_t first = int64_t{blockIdx.x - table.first_tile[index]} * kTile;
  const EncodeRow row = Advance(table.rows[index].row, first);
  const int size = static_cast<int>(min(int64_t{kTile}, row.length));
  const auto at = [](int q) { return PlaceOf(q); };
  const auto count = [&](int q) { return CountOf(q, size); };

  float x[kQuads][4];
  LoadCorrected(row, at, count, x);
  GRADCOMP_UNROLL(8)
  for (int q = 0; q < kQuads; ++q) {
    Wire wire[4];
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      wire[i] = Cast::Encode(x[q][i]);
      x[q][i] = Canonical(x[q][i] - Cast::Decode(wire[i]));
    }
    WriteQuad(wire, staged, PlaceOf(q) * static_cast<int>(sizeof(Wire)));
  }
  if (row.new_residual != nullptr) StoreResidual(row, at, count, x);
  __syncthreads();
  CopyOut(staged, table.rows[index].payload + first * sizeof(Wire),
          size * static_cast<int>(sizeof(Wire)));
}

// Bytes moved an element: the wire's 2 (4) a rank, the output's 4 (2); the floor. Two ranks are
// under way at a time.
template <typename Cast>
__global__ void __launch_bounds__(kThreads)
    cast_decode_kernel(const __grid_constant__ Table<DecodeTask> table, int64_t stride,
                       int64_t world, float scale, DecodeReport* report) {
  using Wire = typename Cast::Wire;
  constexpr int kRanks = 2;
  __shared__ uint4 staged[kRanks][StagedVectors(kTile * sizeof(Wire))];
  const int index = FindRow(table, blockIdx.x);
  const int64_t first = int64_t{blockIdx.x - table.first_tile[index]} * kTile;
  const DecodeRow row = Advance(table.rows[index].row, first);
  const int size = static_cast<int>(min(int64_t{kTile}, row.length));
  const uint8_t* payload = table.rows[index].payload + first * sizeof(Wire);

  float sum[kQuads][4];
  for (int64_t rank = 0; rank < world; rank += kRanks) {
    const int ranks = static_cast<int>(min(int64_t{kRanks}, world - rank));
    CopyIn(payload + rank * stride, stride, ranks, size * static_cast<int>(sizeof(Wire)), staged);
    __syncthreads();
    for (int r = 0; r < ranks; ++r) {
      const int phase = PhaseOf(payload + (rank + r) * stride);
      GRADCOMP_UNROLL(8)
      for (int q = 0; q < kQuads; ++q) {
        float value[4];
        ReadQuad<Cast>(staged[r], phase + PlaceOf(q) * static_cast<int>(sizeof(Wire)), value);
        GRADCOMP_UNROLL(4)
        for (int i = 0; i < 4; ++i) {
          sum[q][i] = rank + r == 0 ? value[i] : sum[q][i] + value[i];
        }
      }
    }
    __syncthreads();
  }
  const auto at = [](int q) { return PlaceOf(q); };
  const auto count = [&](int q) { return CountOf(q, size); };
  if (!StoreScaled(row, at, count, sum, scale)) report->finite = 0;
}

template <typename Cast>
cudaError_t EncodeAs(const Codec& codec, const EncodeRow* rows, int64_t num_rows, uint8_t* payload,
                     cudaStream_t stream) {
  return ForEachTable(
      codec, rows, num_rows, payload, [](const EncodeRow& row) { return TilesOf(row.length); },
      [&](const Table<EncodeTask>& table, int64_t blocks) {
        return Launch(cast_encode_kernel<Cast>, blocks, kThreads, stream, table);
      });
}

template <typename Cast>
cudaError_t DecodeAs(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                     const DecodeRow* rows, int64_t num_rows, float scale, DecodeReport* report,
                     cudaStream_t stream) {
  return ForEachTable(
      codec, rows, num_rows, payloads, [](const DecodeRow& row) { return TilesOf(row.length); },
      [&](const Table<DecodeTask>& table, int64_t blocks) {
        return Launch(cast_decode_kernel<Cast>, blocks, kThreads, stream, table, stride, world,
                      scale, report);
      });
}

}  // namespace

cudaError_t CastEncode(const Codec& codec, const EncodeRow* rows, int64_t num_rows,
                       uint8_t* payload, cudaStream_t stream) {
  switch (codec.family) {
    case Family::kFloat32:
      return EncodeAs<Float32Cast>(codec, rows, num_rows, payload, stream);
    case Family::kFloat16:
      return EncodeAs<Float16Cast>(codec, rows, num_rows, payload, stream);
    case Family::kBFloat16:
      return EncodeAs<BFloat16Cast>(codec, rows, num_rows, payload, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t CastDecode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                       const DecodeRow* rows, int64_t num_rows, float scale, DecodeReport* report,
                       cudaStream_t stream) {
  switch (codec.family) {
    case Family::kFloat32:
      return DecodeAs<Float32Cast>(codec, payloads, stride, world, rows, num_rows, scale, report,
                                   stream);
    case Family::kFloat16:
      return DecodeAs<Float16Cast>(codec, payloads, stride, world, rows, num_rows, scale, report,
                                   stream);
    case Family::kBFloat16:
      return DecodeAs<BFloat16Cast>(codec, payloads, stride, world, rows, num_rows, scale, report,
                                    stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace gradcomp::cuda
