// Working memory that is kept from call to call.

#ifndef GRADCOMP_CPU_KEPT_SCRATCH_H_
#define GRADCOMP_CPU_KEPT_SCRATCH_H_

#include <cstdint>

#include "cpu/status.h"

namespace gradcomp {

struct KeptBlock;

// `bytes` bytes, uninitialised, or none if they could not be had: look at status() before get().
//
// Of kKeptLeast bytes or more, what one call leaves the next takes, on any thread: large memory
// from malloc is new to the process each time, and its pages cost more than the work on them. At
// most kKept blocks stay while nobody uses them; what was never written of one takes no memory.
class KeptScratch {
 public:
  static constexpr int kKept = 4;
  static constexpr int64_t kKeptLeast = 1 << 20;

  explicit KeptScratch(int64_t bytes);
  ~KeptScratch();
  KeptScratch(const KeptScratch&) = delete;
  KeptScratch& operator=(const KeptScratch&) = delete;

  Status status() const;
  void* get() const;

 private:
  KeptBlock* block_ = nullptr;
  int64_t bytes_;
};

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_KEPT_SCRATCH_H_
