// All operations of all codecs over many lengths, alignments, dtypes and wrong payloads, in buffers
// of exact size. Under sanitizers it shows that nothing is accessed out of bounds; its digest shows
// that every instruction set and every number of threads gives the same bytes.
//
//   kernel_sweep LEVEL DIGEST THREADS

#include <algorithm>
#include <string>
#include <vector>

#include "cpu/bucket.h"
#include "cpu/threads.h"
#include "dropout_sweep.h"
#include "rank_sweep.h"
#include "streamed_sweep.h"
#include "support.h"

namespace gradcomp::test {
namespace {

constexpr Rng kRng = {0x0123456789abcdef, 42, 3, 0};
constexpr Rng kRngReduce = {0x0123456789abcdef, 42, 3, 1};

// One bucket: tensors of one dtype, their residuals, and a table that covers them.
struct Bucket {
  DType dtype;
  int64_t misalignment;
  std::vector<int64_t> numels;
  std::vector<Buffer> gradients;
  std::vector<Buffer> residuals;
  std::vector<Segment> segments;

  int64_t num_tensors() const { return static_cast<int64_t>(numels.size()); }
  int64_t num_segments() const { return static_cast<int64_t>(segments.size()); }
};

Bucket MakeBucket(const Codec& codec, std::vector<int64_t> numels, Random* random) {
  Bucket bucket = {kDTypes[random->Below(3)], random->Below(20), std::move(numels), {}, {}, {}};
  for (int64_t tensor = 0; tensor < bucket.num_tensors(); ++tensor) {
    const int64_t numel = bucket.numels[static_cast<size_t>(tensor)];
    Buffer gradient(numel * SizeOf(bucket.dtype), bucket.misalignment);
    Buffer residual(numel * 4, bucket.misalignment);
    const int kind = static_cast<int>(random->Below(kNumberKinds));
    for (int64_t i = 0; i < numel; ++i) {
      const float x = Number(random->Below(50) == 0 ? 4 : kind, random);
      const float r = Number(kind, random);
      Store(gradient, bucket.dtype, i, x);
      std::memcpy(residual.data() + 4 * i, &r, 4);
    }
    bucket.gradients.push_back(std::move(gradient));
    bucket.residuals.push_back(std::move(residual));
    // Some tensors are cut in two, where the codec allows it.
    const int64_t multiple = std::max<int64_t>(codec.block_size, 32);
    const int64_t cut = numel > multiple ? random->Below((numel - 1) / multiple + 1) * multiple : 0;
    const auto add = [&](int64_t start, int64_t length) {
      const int64_t kept = codec.family == Family::kTopK ? random->Below(length + 1) : 0;
      bucket.segments.push_back({tensor, start, length, kept, random->Below(1 << 20)});
    };
    if (cut > 0) add(0, cut);
    add(cut, numel - cut);
  }
  return bucket;
}

Status EncodeBucket(const Codec& codec, const Bucket& bucket, const std::vector<Buffer>* from,
                    const std::vector<Buffer>* to, const Buffer& payload) {
  std::vector<ConstTensor> gradients;
  std::vector<const float*> residuals;
  std::vector<float*> new_residuals;
  for (size_t tensor = 0; tensor < bucket.numels.size(); ++tensor) {
    gradients.push_back({bucket.gradients[tensor].data(), bucket.dtype, bucket.numels[tensor]});
    if (from) residuals.push_back((*from)[tensor].floats());
    if (to) new_residuals.push_back((*to)[tensor].floats());
  }
  const HostileFloatControl hostile;
  return Encode(codec, gradients.data(), from ? residuals.data() : nullptr,
                to ? new_residuals.data() : nullptr, bucket.num_tensors(), bucket.segments.data(),
                bucket.num_segments(), kRng, payload.data(), payload.size());
}

// Encodes in place and to second buffers, which must agree, and without residuals.
std::vector<Buffer> SweepEncode(const Codec& codec, const Bucket& bucket, int64_t size,
                                Digest* digest) {
  std::vector<Buffer> payloads;
  for (int i = 0; i < 3; ++i) payloads.emplace_back(size, bucket.misalignment + i);
  std::vector<Buffer> in_place, fresh;
  for (const Buffer& residual : bucket.residuals) {
    in_place.push_back(residual.Copy());
    fresh.emplace_back(residual.size(), bucket.misalignment + 1);
  }
  CHECK(EncodeBucket(codec, bucket, &in_place, &in_place, payloads[0]).ok());
  CHECK(EncodeBucket(codec, bucket, &bucket.residuals, &fresh, payloads[1]).ok());
  CHECK(EncodeBucket(codec, bucket, nullptr, nullptr, payloads[2]).ok());
  CHECK(payloads[0] == payloads[1]);
  CHECK(in_place == fresh);
  for (const Buffer& residual : fresh) digest->Add(residual);
  digest->Add(payloads[1]);
  digest->Add(payloads[2]);
  return payloads;
}

Status SweepDecode(const Codec& codec, const Bucket& bucket, const Buffer& payloads, int64_t world,
                   DType dtype, Digest* digest) {
  std::vector<Buffer> outputs;
  std::vector<MutableTensor> tensors;
  for (const int64_t numel : bucket.numels) {
    outputs.emplace_back(numel * SizeOf(dtype), bucket.misalignment + 1);
    tensors.push_back({outputs.back().data(), dtype, numel});
  }
  bool finite = false;
  Status status;
  {
    const HostileFloatControl hostile;
    status = Decode(codec, payloads.data(), payloads.size(), world, bucket.segments.data(),
                    bucket.num_segments(), 0.3f, tensors.data(), bucket.num_tensors(), &finite);
  }
  digest->Add(static_cast<int64_t>(status.code));
  if (!status.ok()) return status;
  digest->Add(finite);
  for (const Buffer& output : outputs) digest->Add(output);
  return status;
}

void SweepReduce(const Codec& codec, const Bucket& bucket, const Buffer& payloads, int64_t world,
                 Digest* digest) {
  int64_t numel = 0;
  for (const Segment& segment : bucket.segments) numel += segment.length;
  const Buffer residual(numel * 4, bucket.misalignment);
  const Buffer payload(payloads.size() / world, bucket.misalignment);
  for (float* in_place : {residual.floats(), residual.floats(), static_cast<float*>(nullptr)}) {
    const HostileFloatControl hostile;
    CHECK(Reduce(codec, payloads.data(), payloads.size(), world, bucket.segments.data(),
                 bucket.num_segments(), kRngReduce, 0.3f, in_place, in_place, payload.data(),
                 payload.size())
              .ok());
    digest->Add(payload);
    digest->Add(residual);
  }
}

// Bytes that no encoder made give a result or kBadPayload.
void SweepWrongPayloads(const Codec& codec, const Bucket& bucket, const Buffer& payloads,
                        int64_t world, Random* random, Digest* digest) {
  for (int attempt = 0; attempt < 4 && payloads.size() > 0; ++attempt) {
    Buffer wrong = payloads.Copy();
    const int64_t changes = attempt == 0 ? wrong.size() : attempt;
    for (int64_t change = 0; change < changes; ++change) {
      const int64_t at = attempt == 0 ? change : random->Below(wrong.size());
      wrong.data()[at] ^=
          static_cast<uint8_t>(attempt == 0 ? random->Bits() : uint64_t{1} << random->Below(8));
    }
    const Status status = SweepDecode(codec, bucket, wrong, world, DType::kFloat32, digest);
    CHECK(status.ok() || (status.code == Code::kBadPayload && codec.family == Family::kTopK));
    if (codec.family != Family::kTopK) SweepReduce(codec, bucket, wrong, world, digest);
  }
  for (const int64_t size : {payloads.size() - 1, payloads.size() + 1, payloads.size() * 2 + 3}) {
    if (size < 0) continue;
    const Buffer wrong(size, 0);
    const Status status = SweepDecode(codec, bucket, wrong, world, DType::kFloat32, digest);
    CHECK(status.code == Code::kBadPayloadSize);
    CHECK(EncodeBucket(codec, bucket, nullptr, nullptr, wrong).code == Code::kBadPayloadSize);
  }
}

void SweepBucket(const Codec& codec, std::vector<int64_t> numels, Random* random, Digest* digest) {
  const Bucket bucket = MakeBucket(codec, std::move(numels), random);
  const int64_t size = PayloadSize(codec, bucket.segments.data(), bucket.num_segments());
  CHECK(size >= 0);
  const std::vector<Buffer> payloads = SweepEncode(codec, bucket, size, digest);
  for (int64_t world = 1; world <= 3; world += 2) {
    const Buffer all(size * world, bucket.misalignment);
    for (int64_t rank = 0; rank < world; ++rank) {
      std::copy_n(payloads[static_cast<size_t>(rank)].data(), size, all.data() + rank * size);
    }
    CHECK(SweepDecode(codec, bucket, all, world, kDTypes[random->Below(3)], digest).ok());
    if (codec.family != Family::kTopK) SweepReduce(codec, bucket, all, world, digest);
    SweepWrongPayloads(codec, bucket, all, world, random, digest);
  }
}

// Nothing but a magnitude that times its block's inverse exceeds the largest code: rounded at
// random, one in 2^16 would get the next one.
void SweepLargestCodes(Digest* digest) {
  const Codec codec = {Family::kQuantize, 8, 256, true, Family::kFloat32};
  const int64_t n = int64_t{1} << 20;
  float largest = 1.0f;
  while (largest * (127.0f / largest) <= 127.0f) largest += 0x1p-23f;
  const Buffer gradient(n * 4, 0), payload(PayloadSize(codec, n, 0), 0);
  for (int64_t i = 0; i < n; ++i) gradient.floats()[i] = i % 2 == 0 ? largest : -largest;
  const ConstTensor tensor = {gradient.data(), DType::kFloat32, n};
  const Segment segment = {0, 0, n, 0, 0};
  CHECK(
      Encode(codec, &tensor, nullptr, nullptr, 1, &segment, 1, kRng, payload.data(), payload.size())
          .ok());
  digest->Add(payload);
}

std::vector<Codec> AllCodecs() {
  std::vector<Codec> codecs;
  for (const Family family : {Family::kFloat32, Family::kFloat16, Family::kBFloat16}) {
    codecs.push_back({family, 0, 0, false, Family::kFloat32});
    codecs.push_back({Family::kTopK, 0, 0, false, family});
  }
  for (const int bits : {8, 4, 2}) {
    for (const int64_t block_size : {32, 96, 256, 2080}) {
      for (const bool stochastic : {false, true}) {
        codecs.push_back({Family::kQuantize, bits, block_size, stochastic, Family::kFloat32});
      }
    }
    codecs.push_back({Family::kTopK, bits, 64, true, Family::kQuantize});
    codecs.push_back({Family::kTopK, bits, 2080, false, Family::kQuantize});
  }
  for (const Family family : {Family::kFloat8E4M3, Family::kFloat8E5M2, Family::kSign}) {
    for (const int64_t block_size : {32, 96, 128, 512, 2080}) {
      codecs.push_back({family, 0, block_size, false, Family::kFloat32});
    }
    codecs.push_back({Family::kTopK, 0, 96, false, family});
    codecs.push_back({Family::kTopK, 0, 2080, false, family});
  }
  return codecs;
}

int Main(int argc, char** argv) {
  CHECK(argc == 4);
  const std::string level = argv[1];
#if defined(__x86_64__)
  if (((level == "v3" || level == "v4-emulated") && !__builtin_cpu_supports("x86-64-v3")) ||
      (level == "v4" && !__builtin_cpu_supports("x86-64-v4"))) {
    std::puts("this processor lacks the instructions");
    return 77;
  }
#endif
  SetNumThreads(std::atoi(argv[3]));
  Digest digest;
  Random random(1);
#if defined(__SANITIZE_THREAD__)
  // What threads share out, of some codecs: it is slow.
  const std::vector<Codec> codecs = AllCodecs();
  for (size_t i = 0; i < codecs.size(); i += 5) {
    SweepBucket(codecs[i], {3, 2 * kTaskElements + 1}, &random, &digest);
    SweepBucket(codecs[i], std::vector<int64_t>(50, 1500), &random, &digest);
  }
  SweepDropout(2 * kTaskElements + 1, &random, &digest);
  return 0;
#endif
  for (const Codec& codec : AllCodecs()) {
    for (int64_t numel = 0; numel <= 98; ++numel) SweepBucket(codec, {numel}, &random, &digest);
    for (const int64_t numel : {255, 256, 257, 769, 1023, 1024, 1025, 4097, 6241}) {
      SweepBucket(codec, {numel}, &random, &digest);
    }
    for (int i = 0; i < 20; ++i) {
      SweepBucket(codec, {random.Below(300), 0, random.Below(5), random.Below(3000)}, &random,
                  &digest);
    }
    // Long enough for top-k to sample, for reduce to go in runs, and for several threads, which
    // share one tensor, a tensor and a half, and many. Top-k is cut where there are two tasks.
    const int64_t numel = codec.family == Family::kTopK ? 4 * kTaskElements + 1003 : 140003;
    SweepBucket(codec, {numel}, &random, &digest);
    SweepBucket(codec, {3, kTaskElements, kTaskElements + 1}, &random, &digest);
    SweepBucket(codec, std::vector<int64_t>(90, 1500), &random, &digest);
  }
  for (int64_t numel = 0; numel <= 130; ++numel) SweepDropout(numel, &random, &digest);
  for (const int64_t numel : {1023, 1025, 65535, 65536, 65537, 200007}) {
    SweepDropout(numel, &random, &digest);
  }
  for (int i = 0; i < 60; ++i) SweepRank(&random, &digest);
  SweepStreamed(&random, &digest);
  SweepLargestCodes(&digest);
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(digest.value()));
  std::printf("%s: %s, expected %s, threads %s\n", level.c_str(), hex, argv[2], argv[3]);
  return std::string(hex) == argv[2] ? 0 : 1;
}

}  // namespace
}  // namespace gradcomp::test

int main(int argc, char** argv) { return gradcomp::test::Main(argc, argv); }
