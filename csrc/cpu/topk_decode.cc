// Top-k's sum over ranks, one cache-sized tile of the output after the other: it is cleared, added
// to, scaled and written while it is hot.

#include <algorithm>
#include <new>

#include "core/elias_fano.h"
#include "cpu/block.h"
#include "cpu/elias_fano.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
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
  int64_t first;  // index, among the kept, of the run's first
  int64_t size;   // of the run
  int64_t next;   // index in the run of the next element
  uint32_t positions[kRun];
  float values[kRun];
};

bool ReadRun(const Codec& values_codec, int64_t k, Cursor* cursor) {
  cursor->first += cursor->size;
  cursor->size = std::min(kRun, cursor->reader.remaining());
  cursor->next = 0;
  if (!cursor->reader.Read(cursor->size, cursor->positions)) return false;
  // Whether values are finite is seen in the sums.
  BlockDecode(values_codec, cursor->values_payload, 0, 1, k, cursor->first, cursor->size,
              {cursor->values, DType::kFloat32, 1.0f});
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

GRADCOMP_CLONES bool StoreTile(float* sum, int64_t n, const Sink& sink, int64_t first) {
  return StoreScaled(sum, n, sink, first);
}

}  // namespace

Status TopKDecode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                  int64_t n, int64_t k, const Sink& sink, bool* finite) {
  const Codec values_codec = ValuesCodec(codec);
  const Scratch<Cursor> cursors(world);
  if (!cursors.status().ok()) return cursors.status();
  for (int64_t rank = 0; rank < world; ++rank) {
    Cursor* cursor = cursors.get() + rank;
    cursor->first = cursor->size = cursor->next = 0;
    if (k == 0) continue;  // nothing to read
    cursor->reader = EliasFanoReader(payloads + rank * stride, n, k);
    cursor->values_payload = payloads + rank * stride + EliasFanoSize(n, k);
  }
  *finite = true;
  float sum[kOutputTile];
  for (int64_t begin = 0; begin < n; begin += kOutputTile) {
    const int64_t size = std::min(kOutputTile, n - begin);
    std::fill_n(sum, size, 0.0f);
    for (int64_t rank = 0; rank < world; ++rank) {
      Cursor* cursor = cursors.get() + rank;
      if (!AddBelow(values_codec, k, begin, begin + size, cursor, sum)) return {Code::kBadPayload};
    }
    *finite &= StoreTile(sum, size, sink, begin);
  }
  for (int64_t rank = 0; rank < world; ++rank) {
    if (!cursors.get()[rank].reader.IsPaddingZero()) return {Code::kBadPayload};
  }
  return {};
}

}  // namespace gradcomp
