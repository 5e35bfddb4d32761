// The sweep over sums that are written past the caches, of which others are too short.

#ifndef GRADCOMP_TESTS_NATIVE_STREAMED_SWEEP_H_
#define GRADCOMP_TESTS_NATIVE_STREAMED_SWEEP_H_

#include <cstdint>
#include <cstring>

#include "cpu/bucket.h"
#include "cpu/quantize.h"
#include "support.h"

namespace gradcomp::test {

// Payloads of blocks with any codes, and scales that are NaN at times.
inline Buffer RandomBlocks(const Codec& codec, int64_t n, int64_t world, Random* random) {
  const int64_t size = PayloadSize(codec, n, 0);
  Buffer payloads(size * world, random->Below(20));
  for (int64_t i = 0; i < payloads.size(); ++i) {
    payloads.data()[i] = static_cast<uint8_t>(random->Bits());
  }
  const int64_t blocks = (n + codec.block_size - 1) / codec.block_size;
  for (int64_t rank = 0; rank < world; ++rank) {
    for (int64_t block = 0; block < blocks; ++block) {
      const bool nan = random->Below(40) == 0;
      const float scale = nan ? FloatFromBits(kNanBits) : Number(0, random);
      std::memcpy(payloads.data() + rank * size + block * 4, &scale, 4);
    }
  }
  return payloads;
}

// Streamed or not, the sums are the same, and nothing is written but they.
inline void SweepStreamedRun(const Codec& codec, Random* random, Digest* digest) {
  const int64_t n = 1 + random->Below(3000), world = 1 + random->Below(3);
  const Buffer payloads = RandomBlocks(codec, n, world, random);
  const Buffer streamed(n * 4, random->Below(2) * 16 + random->Below(5) * 4);
  const Buffer stored(n * 4, random->Below(20));
  const auto decode = [&](const Buffer& output, bool past_caches) {
    return QuantizeDecode(codec, payloads.data(), payloads.size() / world, world, n, 0, n,
                          {output.data(), DType::kFloat32, 0.3f, past_caches});
  };
  const bool finite = decode(streamed, true);
  CHECK(decode(stored, false) == finite);
  CHECK(streamed == stored);
  digest->Add(streamed);
  digest->Add(finite);
}

// Outputs that are large enough together.
inline void SweepStreamedBucket(const Codec& codec, Random* random, Digest* digest) {
  const int64_t n = (int64_t{1} << 22) + 300;
  const Buffer payload = RandomBlocks(codec, n, 1, random);
  const Buffer output(n * 4, 16);
  const MutableTensor tensor = {output.data(), DType::kFloat32, n};
  const Segment segment = {0, 0, n, 0, 0};
  bool finite = false;
  CHECK(Decode(codec, payload.data(), payload.size(), 1, &segment, 1, 0.3f, &tensor, 1, &finite)
            .ok());
  digest->Add(output);
  digest->Add(finite);
}

inline void SweepStreamed(Random* random, Digest* digest) {
  for (const int bits : {8, 4, 2}) {
    const Codec codec = {Family::kQuantize, bits, 256, false, Family::kFloat32};
    for (int i = 0; i < 100; ++i) SweepStreamedRun(codec, random, digest);
    SweepStreamedBucket(codec, random, digest);
  }
}

}  // namespace gradcomp::test

#endif  // GRADCOMP_TESTS_NATIVE_STREAMED_SWEEP_H_
