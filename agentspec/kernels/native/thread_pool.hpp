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
    if (helpers_.empty() || count <= 1 || count > kMostItems) {
      for (uint32_t item = 0; item < count; ++item) body(item, 0);
      return;
    }
    launch(count, [](const void* context, uint32_t item, int thread) {
      (*static_cast<const Body*>(context))(item, thread);
    }, &body);
  }

 private:
  // Longer loops run on the caller alone; nothing here comes near.
  static constexpr uint32_t kMostItems = 0xffff;

  using Function = void (*)(const void* context, uint32_t item, int thread);

  void launch(uint32_t count, Function function, const void* context);
  void help(int thread);
  bool take_and_run(uint64_t& ticket, int thread);
  uint64_t wait_for_change(uint64_t ticket);

  // Number of the loop (32 bits), its items (16), the next one to hand out (16). All in one word: whoever takes an
  // item by compare-and-swap knows that it belongs to a loop that is not finished.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  // Of the running loop. They change only while no item is unfinished, so a helper that read them and then took an
  // item has read those of the item's loop.
  alignas(64) std::atomic<Function> function_{nullptr};
  std::atomic<const void*> context_{nullptr};

  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> helpers_;
};

}  // namespace agentspec
