#include "cpu/segments.h"

namespace gradcomp {
namespace {

constexpr int64_t kMaxPayload = int64_t{1} << 62;

bool IsRowValid(const Codec& codec, const Segment& segment) {
  if (segment.tensor < 0 || segment.start < 0 || segment.start > kMaxLength || segment.length < 0 ||
      segment.length > kMaxLength || segment.stream < 0 || segment.stream > int64_t{UINT32_MAX}) {
    return false;
  }
  if (codec.family == Family::kTopK) {
    return segment.length <= kMaxTopKLength && segment.kept >= 0 && segment.kept <= segment.length;
  }
  const bool at_block = codec.block_size == 0 || segment.start % codec.block_size == 0;
  return segment.kept == 0 && at_block;
}

bool Follows(const Segment& segment, const Segment& previous) {
  if (segment.tensor == previous.tensor) {
    return segment.start == previous.start + previous.length && segment.length > 0 &&
           previous.length > 0;
  }
  return segment.tensor == previous.tensor + 1 && segment.start == 0;
}

}  // namespace

Status CheckRun(const Codec& codec, const Segment* segments, int64_t num_segments,
                int64_t* payload_size) {
  if (!IsValid(codec)) return {Code::kBadCodec};
  *payload_size = 0;
  for (int64_t row = 0; row < num_segments; ++row) {
    const Segment& segment = segments[row];
    if (!IsRowValid(codec, segment) || (row > 0 && !Follows(segment, segments[row - 1])) ||
        *payload_size > kMaxPayload) {
      return {Code::kBadSegments, row};
    }
    *payload_size += PayloadSize(codec, segment.length, segment.kept);
  }
  return {};
}

int64_t PayloadSize(const Codec& codec, const Segment* segments, int64_t num_segments) {
  int64_t size;
  return CheckRun(codec, segments, num_segments, &size).ok() ? size : -1;
}

}  // namespace gradcomp
