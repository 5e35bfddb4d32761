// Top-k's sum over ranks, one cache-sized tile of the output after the other: it is cleared, added
// to, scaled and written while it is hot.

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/elias_fano.h"
#include "cpu/block.h"
#include "cpu/elias_fano.h"
#include "cpu/runs.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/threads.h"
#include "cpu/topk.h"

namespace gradcomp {
namespace {

// Output elements at a time: enough to find some kept ones in each.
constexpr int64_t kOutputTile = 4 * kTile;
// Kept elements of a rank decoded at a time.
constexpr int64_t kRun = 256;

// One rank's kept elements in order of position, decoded a run at a time.
struct Cursor {
  EliasFanoReader reader;
  const uint8_t* values_payload;
  int64_t size;  // of the run
  int64_t next;  // index in the run of the next element
  uint32_t positions[kRun];
  float values[kRun];
};

bool ReadRun(const Codec& values_codec, int64_t k, Cursor* cursor) {
  const int64_t first = cursor->reader.read();
  cursor->size = std::min(kRun, cursor->reader.remaining());
  cursor->next = 0;
  if (!cursor->reader.Read(cursor->size, cursor->positions)) return false;
  // Whether values are finite is seen in the sums.
  BlockDecode(values_codec, cursor->values_payload, 0, 1, k, first, cursor->size,
              {cursor->values, DType::kFloat32, 1.0f, false});
  return true;
}

// Adds a rank's elements at positions below `end` to sum, which starts at position `begin`.
bool AddBelow(const Codec& values_codec, int64_t k, int64_t begin, int64_t end, Cursor* cursor,
              float* sum) {
  while (true) {
    int64_t i = cursor->next;
    for (; i < cursor->size && cursor->positions[i] < end; ++i) {
      sum[cursor->positions[i] - begin] += cursor->values[i];
    }
    cursor->next = i;
    if (i < cursor->size || cursor->reader.remaining() == 0) return true;
    if (!ReadRun(values_codec, k, cursor)) return false;
  }
}

// Large outputs are written past the caches, where that can be: few sums are not zero, so that the
// tile takes less to compute than to write.
GRADCOMP_CLONES bool StoreTile(float* __restrict sum, int64_t n, const Sink& sink, int64_t first) {
#if defined(__SSE2__)
  const Sink tile = Advance(sink, first);
  if (CanStream(tile) && n % 4 == 0 && tile.dtype == DType::kFloat32) {
    const float scale = sink.scale;
    int32_t largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum[i] = Canonical(sum[i] * scale);
      largest = std::max(largest, static_cast<int32_t>(Magnitude(sum[i])));
    }
    float* const out = static_cast<float*>(tile.output);
    for (int64_t i = 0; i < n; i += 4) _mm_stream_ps(out + i, _mm_loadu_ps(sum + i));
    return largest < static_cast<int32_t>(kInfinityBits);
  }
#endif
  return StoreScaled(sum, n, sink, first);
}

// Positions [begin, end) of the output. A rank's begin at its place and end at the one after that;
// its places are `stride` after those of the rank before.
struct Slice {
  int64_t begin;
  int64_t end;
  const EliasFanoPlace* places;
  int64_t stride;
};

Status DecodeSlice(const Codec& values_codec, const uint8_t* payloads, int64_t stride,
                   int64_t world, int64_t n, int64_t k, const Slice& slice, const Sink& sink,
                   bool* finite) {
  const Scratch<Cursor> cursors(world);
  if (!cursors.status().ok()) return cursors.status();
  for (int64_t rank = 0; rank < world; ++rank) {
    Cursor* cursor = cursors.get() + rank;
    cursor->size = cursor->next = 0;
    if (k == 0) continue;  // nothing to read
    const uint8_t* const payload = payloads + rank * stride;
    const EliasFanoPlace* const place = slice.places + rank * slice.stride;
    cursor->reader = EliasFanoReader(payload, n, k, place[0], place[1]);
    cursor->values_payload = payload + EliasFanoSize(n, k);
  }
  float sum[kOutputTile];
  *finite = true;
  for (int64_t begin = slice.begin; begin < slice.end; begin += kOutputTile) {
    const int64_t size = std::min(kOutputTile, slice.end - begin);
    std::memset(sum, 0, static_cast<size_t>(size) * sizeof(float));
    for (int64_t rank = 0; rank < world; ++rank) {
      Cursor* cursor = cursors.get() + rank;
      if (!AddBelow(values_codec, k, begin, begin + size, cursor, sum)) return {Code::kBadPayload};
    }
    *finite &= StoreTile(sum, size, sink, begin);
  }
#if defined(__SSE2__)
  _mm_sfence();  // before other threads are told that it is there
#endif
  return {};
}

}  // namespace

Status TopKDecode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                  int64_t n, int64_t k, const Sink& sink, bool* finite) {
  // A slice ends where a tile does, and where all ranks' codes can be entered.
  const int64_t size = std::max(kTaskElements, k == 0 ? kOutputTile : EliasFanoStride(n, k));
  const int64_t slices = CeilDiv(n, size);
  const Scratch<EliasFanoPlace> places(world * (slices + 1));
  if (!places.status().ok()) return places.status();
  std::atomic<bool> sound{true}, all_finite{true};
  if (k > 0) {
    ParallelFor(world, [&](int64_t rank) {
      EliasFanoPlace* const own = places.get() + rank * (slices + 1);
      if (!EliasFanoFind(payloads + rank * stride, n, k, size, slices, own)) sound = false;
    });
  }
  if (!sound) return {Code::kBadPayload};
  FirstError error;
  ParallelFor(slices, [&](int64_t index) {
    const Slice slice = {index * size, std::min(n, (index + 1) * size), places.get() + index,
                         slices + 1};
    bool finite_slice = true;
    error.Add(index, DecodeSlice(ValuesCodec(codec), payloads, stride, world, n, k, slice, sink,
                                 &finite_slice));
    if (!finite_slice) all_finite = false;
  });
  *finite = all_finite;
  return error.status();
}

}  // namespace gradcomp
