// Kernels on several threads: one small pool a library, which all calls in it share.
//
// The calling thread does its own work and whatever nobody helps with, so that no call waits for
// another. Callers and helpers together are at most NumThreads(), unless there are more callers.

#ifndef GRADCOMP_CPU_THREADS_H_
#define GRADCOMP_CPU_THREADS_H_

#include <cstdint>

namespace gradcomp {

// Elements that one task works on, or about as many bytes of another kind: enough that handing a
// task over costs little beside it. What is no longer stays on the calling thread.
constexpr int64_t kTaskElements = 1 << 16;

// Threads that work on kernels at once, those of callers included; 1 until it is set.
int NumThreads();
void SetNumThreads(int count);  // 1 or more

using Task = void (*)(const void* work, int64_t index);
void RunTasks(int64_t count, Task task, const void* work);

// Calls work(i) once for each 0 <= i < count, in any order and on any threads, and returns when all
// have returned. In a call from inside `work`, all on that thread. `work` does not throw.
template <typename Work>
void ParallelFor(int64_t count, const Work& work) {
  const Task task = [](const void* pointer, int64_t index) {
    (*static_cast<const Work*>(pointer))(index);
  };
  RunTasks(count, task, &work);
}

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_THREADS_H_
