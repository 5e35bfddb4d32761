#include "cpu/kept_scratch.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace gradcomp {

// What precedes the memory of a block.
struct alignas(std::max_align_t) KeptBlock {
  int64_t bytes;
};

namespace {

// Each holds a block or nothing. No lock: a child may be forked at any moment.
std::atomic<KeptBlock*> slots[KeptScratch::kKept] = {};

}  // namespace

KeptScratch::KeptScratch(int64_t bytes) : bytes_(bytes) {
  for (int i = 0; bytes >= kKeptLeast && i < kKept; ++i) {
    KeptBlock* const kept = slots[i].exchange(nullptr);
    if (kept != nullptr && kept->bytes >= bytes) {
      block_ = kept;
      return;
    }
    std::free(kept);  // too small, as it would be again
  }
  void* const memory = std::malloc(sizeof(KeptBlock) + static_cast<size_t>(bytes));
  if (memory != nullptr) block_ = new (memory) KeptBlock{bytes};
}

KeptScratch::~KeptScratch() {
  for (int i = 0; bytes_ >= kKeptLeast && i < kKept; ++i) {
    KeptBlock* empty = nullptr;
    if (slots[i].compare_exchange_strong(empty, block_)) return;
  }
  std::free(block_);
}

Status KeptScratch::status() const {
  if (block_ != nullptr) return {};
  return {Code::kNoMemory, bytes_, 0};
}

void* KeptScratch::get() const { return block_ + 1; }

}  // namespace gradcomp
