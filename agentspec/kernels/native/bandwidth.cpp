#include "bandwidth.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>

#include "huge_memory.hpp"
#include "thread_pool.hpp"

namespace agentspec {
namespace {

constexpr int64_t kChunk = int64_t{1} << 18;

// Reads one word of every cache line of a chunk: memory gives whole lines, and any more instructions would be part of
// what is measured.
uint64_t read_chunk(const std::byte* from) {
  constexpr int64_t kCacheLine = 64;
  uint64_t sum = 0;
  for (int64_t offset = 0; offset < kChunk; offset += kCacheLine) {
    uint64_t word;
    std::memcpy(&word, from + offset, sizeof word);
    sum ^= word;
  }
  return sum;
}

}  // namespace

double read_bandwidth(int64_t bytes, int threads, int passes) {
  const int64_t chunks = std::max<int64_t>(1, bytes / kChunk);
  HugeBuffer buffer(static_cast<size_t>(chunks * kChunk));
  std::memset(buffer.data(), 1, chunks * kChunk);
  ThreadPool pool(threads);
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const std::clock_t start = std::clock();
    pool.run(static_cast<uint32_t>(chunks), [&](uint32_t chunk, int) {
      sink.fetch_xor(read_chunk(buffer.data() + chunk * kChunk), std::memory_order_relaxed);
    });
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC / threads;
    best = std::max(best, static_cast<double>(chunks * kChunk) / seconds);
  }
  return best;
}

}  // namespace agentspec
