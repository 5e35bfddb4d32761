// The sweep over payloads and sums that are written past the caches, of which others are too short.

#ifndef GRADCOMP_TESTS_NATIVE_STREAMED_SWEEP_H_
#define GRADCOMP_TESTS_NATIVE_STREAMED_SWEEP_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/block.h"
#include "cpu/bucket.h"
#include "support.h"

namespace gradcomp::test {

// Payloads of any codes or halfs, and scales that are NaN at times.
inline Buffer RandomPayloads(const Codec& codec, int64_t n, int64_t world, Random* random) {
  const int64_t size = PayloadSize(codec, n, 0);
  Buffer payloads(size * world, random->Below(20));
  for (int64_t i = 0; i < payloads.size(); ++i) {
    payloads.data()[i] = static_cast<uint8_t>(random->Bits());
  }
  const int64_t blocks = codec.block_size == 0 ? 0 : CeilDiv(n, codec.block_size);
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
inline void SweepStreamedSums(const Codec& codec, Random* random, Digest* digest) {
  const int64_t n = 1 + random->Below(3000), world = 1 + random->Below(3);
  const Buffer payloads = RandomPayloads(codec, n, world, random);
  const Buffer streamed(n * 4, random->Below(2) * 16 + random->Below(5) * 4);
  const Buffer stored(n * 4, random->Below(20));
  const auto decode = [&](const Buffer& output, bool past_caches) {
    return BlockDecode(codec, payloads.data(), payloads.size() / world, world, n, 0, n,
                       {output.data(), DType::kFloat32, 0.3f, past_caches});
  };
  const bool finite = decode(streamed, true);
  CHECK(decode(stored, false) == finite);
  CHECK(streamed == stored);
  digest->Add(streamed);
  digest->Add(finite);
}

// A payload and what it loses are the same, streamed or not, of a gradient with or without
// residual.
inline void SweepStreamedPayload(const Codec& codec, Random* random, Digest* digest) {
  const int64_t n = 1 + random->Below(3000), size = PayloadSize(codec, n, 0);
  const Buffer gradient(n * 4, random->Below(20));
  const int kind = static_cast<int>(random->Below(kNumberKinds));
  for (int64_t i = 0; i < n; ++i) Store(gradient, DType::kFloat32, i, Number(kind, random));
  const RandomStream stream = {{1, 2, 3, 4}, {5, 6}};
  const auto encode = [&](const Buffer& payload, const Buffer* lost, bool past_caches) {
    Float32* const left = lost ? reinterpret_cast<Float32*>(lost->data()) : nullptr;
    BlockEncode(codec, {gradient.data(), DType::kFloat32, left, left, past_caches}, n, 0, n, 0,
                stream, payload.data());
  };
  // Codes follow scales, and can be in whole pieces where these end.
  const Buffer streamed(size, random->Below(5) * 4), stored(size, random->Below(20));
  const Buffer residual(n * 4, random->Below(20));
  for (int64_t i = 0; i < n; ++i) Store(residual, DType::kFloat32, i, Number(kind, random));
  const Buffer other = residual.Copy();
  encode(streamed, nullptr, true);
  encode(stored, nullptr, false);
  CHECK(streamed == stored);
  digest->Add(streamed);
  encode(streamed, &residual, true);
  encode(stored, &other, false);
  CHECK(streamed == stored);
  CHECK(residual == other);
  digest->Add(streamed);
  digest->Add(residual);
}

// A tensor that is large enough, both ways.
inline void SweepStreamedBucket(const Codec& codec, Random* random, Digest* digest) {
  const int64_t n = (int64_t{1} << 22) + 300;
  const Buffer payload = RandomPayloads(codec, n, 1, random);
  const Buffer output(n * 4, 16);
  const MutableTensor tensor = {output.data(), DType::kFloat32, n};
  const Segment segment = {0, 0, n, 0, 0};
  bool finite = false;
  CHECK(Decode(codec, payload.data(), payload.size(), 1, &segment, 1, 0.3f, &tensor, 1, &finite)
            .ok());
  digest->Add(output);
  digest->Add(finite);
  const Buffer encoded(payload.size(), 0);
  const ConstTensor gradient = {output.data(), DType::kFloat32, n};
  CHECK(Encode(codec, &gradient, nullptr, nullptr, 1, &segment, 1, {1, 2, 3, 0}, encoded.data(),
               encoded.size())
            .ok());
  digest->Add(encoded);
}

inline void SweepStreamed(Random* random, Digest* digest) {
  std::vector<Codec> codecs = {{Family::kFloat16, 0, 0, false, Family::kFloat32}};
  for (const int bits : {8, 4, 2}) {
    for (const bool stochastic : {false, true}) {
      codecs.push_back({Family::kQuantize, bits, 256, stochastic, Family::kFloat32});
    }
  }
  for (const Codec& codec : codecs) {
    for (int i = 0; i < 100; ++i) {
      SweepStreamedSums(codec, random, digest);
      SweepStreamedPayload(codec, random, digest);
    }
    SweepStreamedBucket(codec, random, digest);
  }
}

}  // namespace gradcomp::test

#endif  // GRADCOMP_TESTS_NATIVE_STREAMED_SWEEP_H_
