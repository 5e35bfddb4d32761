// The rules of segment tables.

#ifndef GRADCOMP_CPU_SEGMENTS_H_
#define GRADCOMP_CPU_SEGMENTS_H_

#include <cstdint>

#include "core/codec.h"
#include "cpu/bucket.h"
#include "cpu/status.h"

namespace gradcomp {

// Whether rows are valid by themselves and follow one another; a run of rows may begin and end
// anywhere in a tensor. Sets *payload_size. kBadCodec, kBadSegments.
Status CheckRun(const Codec& codec, const Segment* segments, int64_t num_segments,
                int64_t* payload_size);

// Whether they moreover cover tensors of these sizes exactly: numel(t) elements for 0 <= t < count.
template <typename Numel>
Status CheckCover(const Codec& codec, const Segment* segments, int64_t num_segments,
                  int64_t num_tensors, Numel numel, int64_t* payload_size) {
  if (Status status = CheckRun(codec, segments, num_segments, payload_size); !status.ok()) {
    return status;
  }
  int64_t covered = 0;  // tensors complete
  for (int64_t row = 0; row < num_segments; ++row) {
    const Segment& segment = segments[row];
    if (segment.tensor != covered || covered >= num_tensors ||
        segment.start + segment.length > numel(covered) ||
        (segment.length == 0 && numel(covered) != 0)) {
      return {Code::kBadSegments, row};
    }
    if (row == 0 && segment.start != 0) return {Code::kBadSegments, row};
    covered += segment.start + segment.length == numel(covered);
  }
  if (covered != num_tensors) return {Code::kBadSegments, num_segments};
  return {};
}

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_SEGMENTS_H_
