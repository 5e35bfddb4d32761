// Uninitialised working memory for the length of a call.

#ifndef GRADCOMP_CPU_SCRATCH_H_
#define GRADCOMP_CPU_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include "cpu/status.h"

namespace gradcomp {

// `count` elements, or none if they could not be had: look at status() before get().
template <typename T>
class Scratch {
  static_assert(std::is_nothrow_default_constructible_v<T>);

 public:
  explicit Scratch(int64_t count)
      : data_(new (std::nothrow) T[static_cast<size_t>(count)]), count_(count) {}

  Status status() const {
    if (data_) return {};
    return {Code::kNoMemory, count_ * static_cast<int64_t>(sizeof(T)), 0};
  }
  T* get() const { return data_.get(); }

 private:
  std::unique_ptr<T[]> data_;
  int64_t count_;
};

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_SCRATCH_H_
