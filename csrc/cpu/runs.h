// A bucket cut into tasks for several threads. Where the cuts fall depends on the segments alone.

#ifndef GRADCOMP_CPU_RUNS_H_
#define GRADCOMP_CPU_RUNS_H_

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "core/codec.h"
#include "cpu/bucket.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/status.h"
#include "cpu/threads.h"

namespace gradcomp {

// Elements [first, first + count) of segment `row`, before which there are `element` elements and
// `payload` bytes of others.
struct Run {
  int64_t row;
  int64_t first;
  int64_t count;
  int64_t element;
  int64_t payload;
};

// Elements at whose multiples a segment may be cut, 0 for nowhere.
inline int64_t CutMultiple(const Codec& codec) {
  if (codec.family == Family::kTopK) return 0;
  return codec.block_size > 0 ? codec.block_size : kCacheLine;  // casts: threads share no line
}

// Where each task of about kTaskElements begins; `starts` has room for `tasks` + 1. A run that
// begins a task has count 0 here.
inline void FindStarts(const Codec& codec, const Segment* segments, int64_t num_segments,
                       int64_t tasks, Run* starts) {
  const int64_t multiple = CutMultiple(codec);
  Run at = {0, 0, 0, 0, 0};
  int64_t task = 0;
  for (; at.row < num_segments; ++at.row) {
    const Segment& segment = segments[at.row];
    for (; task < tasks && task * kTaskElements < at.element + segment.length; ++task) {
      const int64_t offset = std::max<int64_t>(0, task * kTaskElements - at.element);
      starts[task] = at;
      if (multiple > 0) starts[task].first = offset / multiple * multiple;
    }
    at.element += segment.length;
    at.payload += PayloadSize(codec, segment.length, segment.kept);
  }
  for (; task <= tasks; ++task) starts[task] = at;
}

// The error of the lowest row of several that may fail at once.
class FirstError {
 public:
  void Add(int64_t row, const Status& status) {
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!status_.ok() && row_ <= row) return;
    row_ = row;
    status_ = status;
  }
  const Status& status() const { return status_; }

 private:
  std::mutex mutex_;
  int64_t row_ = 0;
  Status status_;
};

// Calls `Status work(const Run&)` for runs that cover every element once, on several threads, and
// returns the error of the lowest row. A run of top-k is a whole segment; those longer than a task
// come last and one by one, from the calling thread, so that they may use several themselves.
template <typename Work>
Status ForEachRun(const Codec& codec, const Segment* segments, int64_t num_segments,
                  const Work& work) {
  const bool whole = codec.family == Family::kTopK;
  int64_t numel = 0, shared = 0;
  for (int64_t row = 0; row < num_segments; ++row) {
    numel += segments[row].length;
    if (!whole || segments[row].length <= kTaskElements) shared += segments[row].length;
  }
  const int64_t tasks = std::max<int64_t>(1, CeilDiv(numel, kTaskElements));
  Run few[2];
  const Scratch<Run> many(tasks > 1 ? tasks + 1 : 0);
  if (!many.status().ok()) return many.status();
  Run* const starts = tasks > 1 ? many.get() : few;
  FindStarts(codec, segments, num_segments, tasks, starts);

  FirstError error;
  const auto do_tasks = [&](int64_t first_task, int64_t end_task, bool longer) {
    const Run& end = starts[end_task];
    Run run = starts[first_task];
    for (; run.row < end.row || (run.row == end.row && run.first < end.first); ++run.row) {
      const Segment& segment = segments[run.row];
      run.count = (run.row < end.row ? segment.length : end.first) - run.first;
      if (!whole || (segment.length > kTaskElements) == longer) error.Add(run.row, work(run));
      run.first = 0;
      run.element += segment.length;
      run.payload += PayloadSize(codec, segment.length, segment.kept);
    }
  };
  if (shared > kTaskElements) {
    ParallelFor(tasks, [&](int64_t task) { do_tasks(task, task + 1, false); });
  } else {
    do_tasks(0, tasks, false);
  }
  if (whole) do_tasks(0, tasks, true);
  return error.status();
}

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_RUNS_H_
