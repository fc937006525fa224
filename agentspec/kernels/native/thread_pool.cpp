#include "thread_pool.hpp"

#include <chrono>

namespace agentspec {
namespace {

// Regions of one forward pass follow each other within microseconds; between passes helpers should sleep.
constexpr auto kSpin = std::chrono::microseconds(60);
constexpr int kChecksPerClockRead = 64;
// A caller that waits for a helper's last item longer than this gives its core away: the helper may need it.
constexpr int kSpinsBeforeYield = 2000;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int thread = 1; thread < threads; ++thread) helpers_.emplace_back([this, thread] { help(thread); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

void ThreadPool::launch(uint32_t count, Function function, const void* context) {
  function_.store(function, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  unfinished_.store(count, std::memory_order_relaxed);
  uint64_t ticket = ((ticket_.load(std::memory_order_relaxed) >> 32) + 1) << 32 | uint64_t{count} << 16;
  ticket_.store(ticket);
  if (sleepers_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  while (take_and_run(ticket, 0)) {
  }
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpinsBeforeYield) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

// Takes one item and runs it; false when none is left. `ticket` is the last one seen.
bool ThreadPool::take_and_run(uint64_t& ticket, int thread) {
  ticket = ticket_.load(std::memory_order_acquire);
  while (true) {
    const Function function = function_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const auto item = static_cast<uint32_t>(ticket & 0xffff);
    if (item >= (ticket >> 16 & 0xffff)) return false;
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      function(context, item, thread);
      unfinished_.fetch_sub(1, std::memory_order_release);
      return true;
    }
  }
}

void ThreadPool::help(int thread) {
  uint64_t ticket = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (!take_and_run(ticket, thread)) ticket = wait_for_change(ticket);
  }
}

uint64_t ThreadPool::wait_for_change(uint64_t ticket) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int check = 0; check < kChecksPerClockRead; ++check) {
      const uint64_t now = ticket_.load(std::memory_order_acquire);
      if (now != ticket) return now;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  std::unique_lock lock(mutex_);
  // Counted before the last look at the ticket, as the caller stores the ticket before it looks at the count: one of
  // the two sees the other.
  sleepers_.fetch_add(1);
  wake_.wait(lock, [&] { return stopping_.load() || ticket_.load() != ticket; });
  sleepers_.fetch_sub(1);
  return ticket_.load();
}

}  // namespace agentspec
