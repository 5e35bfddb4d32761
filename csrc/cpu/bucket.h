// Encode, decode and reduce a bucket: a list of tensors of one codec, cut into segments.
//
// A payload is the concatenation of its segments' payloads, without padding. Tensors, residuals
// and payloads may have any byte alignment. Nothing here allocates more than a small workspace,
// throws, or depends on the caller's rounding mode and flush-to-zero settings. Buffers do not
// overlap, but for new residuals, which may equal the old.

#ifndef GRADCOMP_CPU_BUCKET_H_
#define GRADCOMP_CPU_BUCKET_H_

#include <cstdint>

#include "core/codec.h"
#include "core/threefry.h"
#include "cpu/status.h"

namespace gradcomp {

// A run of `length` elements of flat tensor number `tensor`, from element `start`, of which top-k
// keeps `kept` (0 for other codecs). `stream` tells the variables' random numbers apart.
struct Segment {
  int64_t tensor;
  int64_t start;
  int64_t length;
  int64_t kept;
  int64_t stream;
};
static_assert(sizeof(Segment) == 5 * sizeof(int64_t), "callers pass int64 [S, 5]");

struct ConstTensor {
  const void* data;
  DType dtype;
  int64_t numel;
};

struct MutableTensor {
  void* data;
  DType dtype;
  int64_t numel;
};

// Bytes of the payload; -1 if a row of `segments` is not valid by itself.
int64_t PayloadSize(const Codec& codec, const Segment* segments, int64_t num_segments);

// Writes the payload of gradients + residuals and, with residuals, what it loses of them.
//
// `segments` cover the tensors exactly and in order; an empty tensor has one row of length 0.
// Rows of block codecs start at multiples of the block size. `residuals` and `new_residuals` are
// null or hold one float32 array a tensor; new_residuals[t] may equal residuals[t].
Status Encode(const Codec& codec, const ConstTensor* gradients, const float* const* residuals,
              float* const* new_residuals, int64_t num_tensors, const Segment* segments,
              int64_t num_segments, const Rng& rng, uint8_t* payload, int64_t payload_size);

// Writes scale * (sum over `world` payloads in rank order) to the outputs, and whether all of it
// is finite. `payloads` are of equal size, one after the other. Any bytes give a result or an
// error; after an error the outputs hold anything.
Status Decode(const Codec& codec, const uint8_t* payloads, int64_t payloads_size, int64_t world,
              const Segment* segments, int64_t num_segments, float scale,
              const MutableTensor* outputs, int64_t num_tensors, bool* finite);

// The middle step of the two-phase exchange, for all but top-k: decodes and sums the `world`
// payloads of a chunk, scales, adds the residual (float32 [sum of lengths], or null) and encodes
// again. `segments` are a contiguous run of a table as above.
Status Reduce(const Codec& codec, const uint8_t* payloads, int64_t payloads_size, int64_t world,
              const Segment* segments, int64_t num_segments, const Rng& rng, float scale,
              const float* residual, float* new_residual, uint8_t* payload, int64_t payload_size);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_BUCKET_H_
