#include "cpu/cast.h"

#include <algorithm>

#include "core/float_bits.h"
#include "cpu/cast_vectors.h"
#include "cpu/half.h"
#include "cpu/simd.h"

namespace gradcomp {
namespace {

GRADCOMP_INLINE void Narrow(const float* x, int64_t n, Float32* __restrict wire) {
  for (int64_t i = 0; i < n; ++i) wire[i].value = x[i];
}

GRADCOMP_INLINE void Narrow(const float* x, int64_t n, Float16* wire) {
  float saturated[kTile];
  for (int64_t i = 0; i < n; ++i) saturated[i] = SaturateToHalf(x[i]);
  HalfFromFloats(saturated, n, wire);
}

GRADCOMP_INLINE void Narrow(const float* x, int64_t n, BFloat16* __restrict wire) {
  for (int64_t i = 0; i < n; ++i) wire[i].bits = SaturatingBFloat16FromFloat(x[i]);
}

// What was sent, of each.
template <typename Wire>
GRADCOMP_INLINE void WidenTile(const Wire* __restrict wire, int64_t n, float* __restrict sent) {
  for (int64_t i = 0; i < n; ++i) sent[i] = Widen(wire[i]);
}

GRADCOMP_INLINE void WidenTile(const Float16* wire, int64_t n, float* sent) {
  FloatsFromHalf(wire, n, sent);
}

template <typename Wire>
GRADCOMP_INLINE void Encode(const Source& source, int64_t n, uint8_t* payload) {
  for (int64_t first = 0; first < n; first += kTile) {
    const int64_t count = std::min(kTile, n - first);
    float x[kTile];
    LoadCorrected(source, first, count, x);
    Wire* __restrict wire = reinterpret_cast<Wire*>(payload) + first;
    Narrow(x, count, wire);
    if (source.new_residual == nullptr) continue;
    Float32* __restrict lost = source.new_residual + first;
    float sent[kTile];
    WidenTile(wire, count, sent);
    for (int64_t i = 0; i < count; ++i) lost[i].value = Canonical(x[i] - sent[i]);
  }
}

template <typename Wire>
GRADCOMP_INLINE bool Decode(const uint8_t* payloads, int64_t stride, int64_t world, int64_t n,
                            const Sink& sink) {
  bool finite = true;
  for (int64_t first = 0; first < n; first += kTile) {
    const int64_t count = std::min(kTile, n - first);
    float sum[kTile];
    for (int64_t rank = 0; rank < world; ++rank) {
      const Wire* wire = reinterpret_cast<const Wire*>(payloads + rank * stride) + first;
      if (rank == 0) {
        WidenTile(wire, count, sum);
      } else {
        float term[kTile];
        WidenTile(wire, count, term);
        for (int64_t i = 0; i < count; ++i) sum[i] += term[i];
      }
    }
    finite &= StoreScaled(sum, count, sink, first);
  }
  return finite;
}

}  // namespace

GRADCOMP_CLONES void CastEncode(Family family, const Source& source, int64_t n, uint8_t* payload) {
  if (family == Family::kFloat32) return Encode<Float32>(source, n, payload);
  if (family == Family::kBFloat16) return Encode<BFloat16>(source, n, payload);
  Float16* const wire = reinterpret_cast<Float16*>(payload);
  int64_t done = EncodeHalfsV4(source, n, wire);
  if (done == 0) done = EncodeHalfsV3(source, n, wire);
  Encode<Float16>(Advance(source, done), n - done, reinterpret_cast<uint8_t*>(wire + done));
}

GRADCOMP_CLONES bool CastDecode(Family family, const uint8_t* payloads, int64_t stride,
                                int64_t world, int64_t n, const Sink& sink) {
  if (family == Family::kFloat32) return Decode<Float32>(payloads, stride, world, n, sink);
  if (family == Family::kBFloat16) return Decode<BFloat16>(payloads, stride, world, n, sink);
  bool finite = true;
  const int64_t done = DecodeHalfsV4(payloads, stride, world, n, sink, &finite);
  const uint8_t* const rest = payloads + done * static_cast<int64_t>(sizeof(Float16));
  return Decode<Float16>(rest, stride, world, n - done, Advance(sink, done)) && finite;
}

}  // namespace gradcomp
