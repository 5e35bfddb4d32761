#include "cpu/threads.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "cpu/float_control.h"

namespace gradcomp {
namespace {

std::atomic<int> num_threads{1};

// Whether this thread is inside a task.
thread_local bool in_task = false;

// One call of RunTasks, on the stack of its caller.
struct Job {
  const int64_t count;
  const Task task;
  const void* const work;
  std::atomic<int64_t> next{0};  // the first task that nobody has taken
  int helpers = 0;               // workers that may still look at this; under the pool's mutex
  Job* later = nullptr;          // the next job in the pool's list; likewise

  bool Take(int64_t* index) {
    *index = next.fetch_add(1, std::memory_order_relaxed);
    return *index < count;
  }
  bool IsTaken() const { return next.load(std::memory_order_relaxed) >= count; }
};

void RunOne(const Job& job, int64_t index) {
  in_task = true;
  job.task(job.work, index);
  in_task = false;
}

class Pool {
 public:
  void Run(Job* job) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++running_;
      Append(job);
      CallHelpers(job->count - 1);
    }
    int64_t index;
    while (job->Take(&index)) RunOne(*job, index);

    std::unique_lock<std::mutex> lock(mutex_);
    Remove(job);
    helper_left_.wait(lock, [&] { return job->helpers == 0; });
    --running_;
    // There is room now for a helper of another call.
    if (jobs_ != nullptr) job_waits_.notify_one();
  }

 private:
  void Append(Job* job) {
    Job** end = &jobs_;
    while (*end != nullptr) end = &(*end)->later;
    *end = job;
  }

  void Remove(Job* job) {
    Job** at = &jobs_;
    while (*at != job) at = &(*at)->later;
    *at = job->later;
  }

  // Wakes workers, or starts them, as long as there is room for them.
  void CallHelpers(int64_t most) {
    const int limit = NumThreads();
    const int64_t wanted = std::min<int64_t>(most, limit - running_);
    while (workers_ < std::min<int64_t>(most, limit - 1) && StartWorker()) ++workers_;
    for (int64_t i = 0; i < wanted; ++i) job_waits_.notify_one();
  }

  // It lives as long as the process, and the pool too: nothing has to be ended in any order.
  bool StartWorker() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
    bool started = true;
    try {
      std::thread([this] { Work(); }).detach();
    } catch (const std::system_error&) {
      started = false;  // the system has no more: go on with those that there are
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  void Work() {
    const DefaultFloatControl float_control;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      Job* job = nullptr;
      job_waits_.wait(lock, [&] { return (job = Waiting()) != nullptr; });
      ++running_;
      ++job->helpers;
      lock.unlock();
      int64_t index;
      // A caller that came meanwhile takes this thread's place.
      while (running_ <= NumThreads() && job->Take(&index)) RunOne(*job, index);
      lock.lock();
      --running_;
      if (--job->helpers == 0) helper_left_.notify_all();
    }
  }

  // A job that may be helped, or null.
  Job* Waiting() const {
    if (running_ >= NumThreads()) return nullptr;
    Job* job = jobs_;
    while (job != nullptr && job->IsTaken()) job = job->later;
    return job;
  }

  std::mutex mutex_;
  std::condition_variable job_waits_;
  std::condition_variable helper_left_;
  Job* jobs_ = nullptr;          // in the order in which they came
  int workers_ = 0;              // threads that were started
  std::atomic<int> running_{0};  // callers and workers at work; written under the mutex
};

// Never destroyed, because its workers may outlive the objects of this library.
std::atomic<Pool*> the_pool{nullptr};

// A forked child has none of the workers, and may have a locked mutex: it makes a pool of its own.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });

Pool* GetPool() {
  Pool* pool = the_pool.load();
  if (pool != nullptr) return pool;
  Pool* const made = new (std::nothrow) Pool;
  if (the_pool.compare_exchange_strong(pool, made)) return made;
  delete made;  // another thread was faster
  return pool;
}

}  // namespace

int NumThreads() { return num_threads.load(std::memory_order_relaxed); }

void SetNumThreads(int count) { num_threads.store(std::max(count, 1), std::memory_order_relaxed); }

void RunTasks(int64_t count, Task task, const void* work) {
  Pool* const pool = count > 1 && NumThreads() > 1 && !in_task ? GetPool() : nullptr;
  if (pool == nullptr) {
    for (int64_t i = 0; i < count; ++i) task(work, i);
    return;
  }
  Job job{count, task, work};
  pool->Run(&job);
}

}  // namespace gradcomp
