// A fork-join pool for regions of microseconds, many thousands of them a second.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace agentspec {

// Runs loops over independent items on the calling thread and its helpers. Items are handed out one by one, so a
// helper that the system has descheduled delays the loop by the item it holds and no more.
class ThreadPool {
 public:
  // `threads` counts the caller.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls `body(item, thread)` for every item below `count` and returns when all are done. One caller at a time;
  // `thread` is below `threads()` and tells which scratch memory to use. `body` must not throw.
  template <class Body>
  void run(uint32_t count, const Body& body) {
    if (helpers_.empty() || count == 1) {
      for (uint32_t item = 0; item < count; ++item) body(item, 0);
      return;
    }
    launch(count, [](const void* context, uint32_t item, int thread) {
      (*static_cast<const Body*>(context))(item, thread);
    }, &body);
  }

 private:
  using Function = void (*)(const void* context, uint32_t item, int thread);

  void launch(uint32_t count, Function function, const void* context);
  void help(int thread);
  bool take_and_run(uint64_t& ticket, int thread);
  uint64_t wait_for_change(uint64_t ticket);

  // High half: number of the loop. Low half: next item to hand out.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  // Fields of the running loop. They change only while no item is unfinished, so a helper that took an item (which
  // its compare-and-swap proves to be of the loop whose fields it read) has read them whole.
  alignas(64) std::atomic<uint32_t> count_{0};
  std::atomic<Function> function_{nullptr};
  std::atomic<const void*> context_{nullptr};

  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> helpers_;
};

}  // namespace agentspec
