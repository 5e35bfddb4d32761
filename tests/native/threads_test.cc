// The pool: every task runs once, whoever calls, how many there are, and in a forked child.

#include "cpu/threads.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "support.h"

namespace gradcomp::test {
namespace {

// Each task runs once, and what it wrote is seen after the call.
void CheckEachRunsOnce(int64_t count) {
  std::vector<int64_t> runs(static_cast<size_t>(count), 0);
  ParallelFor(count, [&](int64_t i) { runs[static_cast<size_t>(i)] += i + 1; });
  for (int64_t i = 0; i < count; ++i) CHECK(runs[static_cast<size_t>(i)] == i + 1);
}

void TestCounts() {
  for (const int threads : {1, 2, 3, 7, 2}) {
    SetNumThreads(threads);
    CHECK(NumThreads() == threads);
    for (int64_t count = 0; count < 50; ++count) CheckEachRunsOnce(count);
    CheckEachRunsOnce(5000);
  }
}

void TestCallsFromTasks() {
  SetNumThreads(3);
  std::atomic<int64_t> runs{0};
  ParallelFor(20, [&](int64_t) { ParallelFor(30, [&](int64_t) { ++runs; }); });
  CHECK(runs == 600);
}

// As many as there are cores for, whatever the number of callers.
void TestManyCallers() {
  for (const int threads : {2, 3, 7}) {
    SetNumThreads(threads);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 8; ++caller) {
      callers.emplace_back([] {
        for (int64_t count = 0; count < 200; ++count) CheckEachRunsOnce(count);
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
}

// Tasks wait, so that a helper has the time to come.
int64_t MostAtOnce(int callers_at_once) {
  std::atomic<int64_t> running{0}, most{0};
  const auto call = [&] {
    ParallelFor(12, [&](int64_t) {
      const int64_t now = ++running;
      int64_t seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      --running;
    });
  };
  std::vector<std::thread> callers;
  for (int caller = 0; caller < callers_at_once; ++caller) callers.emplace_back(call);
  for (std::thread& caller : callers) caller.join();
  return most;
}

void TestNeverMoreThanAllowed() {
  SetNumThreads(1);
  CHECK(MostAtOnce(1) == 1);
  SetNumThreads(3);
  CHECK(MostAtOnce(1) <= 3);
  // Callers that come while helpers are in a task: each of those ends first.
  CHECK(MostAtOnce(6) <= 6 + 2);
}

void TestHelpersCome() {
  SetNumThreads(2);
  int64_t most = 0;
  for (int attempt = 0; attempt < 100 && most < 2; ++attempt) most = MostAtOnce(1);
  CHECK(most == 2);
}

#if !defined(__SANITIZE_THREAD__)  // which knows no threads that a forked child starts
// The child has none of its parent's workers, and is forked while others use the pool.
void TestFork() {
  SetNumThreads(3);
  std::atomic<bool> done{false};
  std::thread busy([&] {
    while (!done) CheckEachRunsOnce(100);
  });
  for (int attempt = 0; attempt < 20; ++attempt) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(60);  // ends a child that hangs
      CheckEachRunsOnce(1000);
      _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  done = true;
  busy.join();
}
#endif

}  // namespace
}  // namespace gradcomp::test

int main() {
  gradcomp::test::TestCounts();
  gradcomp::test::TestCallsFromTasks();
  gradcomp::test::TestManyCallers();
  gradcomp::test::TestNeverMoreThanAllowed();
  gradcomp::test::TestHelpersCome();
#if !defined(__SANITIZE_THREAD__)
  gradcomp::test::TestFork();
#endif
  std::puts("threads_test: ok");
  return 0;
}
