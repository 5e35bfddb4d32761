// Payloads of the k elements of largest magnitude: [positions, Elias–Fano][values].

#ifndef GRADCOMP_CPU_TOPK_H_
#define GRADCOMP_CPU_TOPK_H_

#include <cstdint>

#include "core/codec.h"
#include "core/threefry.h"
#include "cpu/status.h"
#include "cpu/tile.h"

namespace gradcomp {

// Encodes the k of n elements with the largest magnitudes, ties to the lowest position,
// 0 <= k <= n. `stream` chooses the random bits of stochastically quantised values.
Status TopKEncode(const Codec& codec, const Source& source, int64_t n, int64_t k,
                  const RandomStream& stream, uint8_t* payload);

// Decodes and sums n elements of `world` payloads, `stride` bytes apart; *finite says whether all
// outputs are finite. kBadPayload if positions are not k increasing numbers below n.
Status TopKDecode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                  int64_t n, int64_t k, const Sink& sink, bool* finite);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_TOPK_H_
