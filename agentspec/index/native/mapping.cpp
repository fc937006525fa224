#include "mapping.hpp"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace agentspec {
namespace {

// A guarded address range. Guards are reused but never freed, so that the signal handler can walk the list at any time.
struct Guard {
  std::atomic<std::uintptr_t> begin{0};  // 0: free
  std::atomic<std::uintptr_t> end{0};
  std::atomic<std::atomic<bool>*> damaged{nullptr};
  Guard* next = nullptr;
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free);

std::atomic<Guard*> guards{nullptr};
std::mutex guards_mutex;  // serialises changes of the list; the handler takes no lock
struct sigaction earlier_action;
std::uintptr_t page_size = 0;

bool repair(std::uintptr_t address) {
  for (Guard* guard = guards.load(std::memory_order_acquire); guard != nullptr; guard = guard->next) {
    const std::uintptr_t begin = guard->begin.load(std::memory_order_acquire);
    const std::uintptr_t end = guard->end.load(std::memory_order_acquire);
    std::atomic<bool>* damaged = guard->damaged.load(std::memory_order_acquire);
    const bool reused_meanwhile = guard->begin.load(std::memory_order_acquire) != begin;
    if (begin == 0 || reused_meanwhile || address < begin || address >= end) continue;
    void* page = reinterpret_cast<void*>(address & ~(page_size - 1));
    const void* mapped = mmap(page, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (mapped == MAP_FAILED) return false;
    damaged->store(true, std::memory_order_release);
    return true;
  }
  return false;
}

void on_bus_error(int signal_number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
#ifdef SI_TKILL
  // Handlers installed after ours (Python's faulthandler) pass a fault on by raising the signal again, which loses
  // its address. Returning lets the faulting instruction run again and bring the real address here.
  const bool raised_again = info->si_code == SI_TKILL && info->si_pid == getpid();
#else
  const bool raised_again = false;
#endif
  if (!raised_again && !repair(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    if ((earlier_action.sa_flags & SA_SIGINFO) != 0) {
      earlier_action.sa_sigaction(signal_number, info, context);
    } else if (earlier_action.sa_handler != SIG_DFL && earlier_action.sa_handler != SIG_IGN) {
      earlier_action.sa_handler(signal_number);
    } else {
      signal(signal_number, SIG_DFL);  // the instruction faults again and ends the process as it would have
    }
  }
  errno = saved_errno;
}

// Called under guards_mutex. Installed once: installing it again over a handler that chains to ours would make a cycle.
void install_handler() {
  static bool installed = false;
  if (installed) return;
  page_size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, nullptr, &earlier_action) != 0 || sigaction(SIGBUS, &action, nullptr) != 0) {
    throw SegmentError(std::string("cannot install the handler for damaged index files: ") + std::strerror(errno));
  }
  installed = true;
}

void add_guard(std::uintptr_t begin, std::uintptr_t end, std::atomic<bool>* damaged) {
  const std::lock_guard lock(guards_mutex);
  install_handler();
  Guard* guard = guards.load(std::memory_order_acquire);
  while (guard != nullptr && guard->begin.load(std::memory_order_relaxed) != 0) guard = guard->next;
  const bool fresh = guard == nullptr;
  if (fresh) {
    guard = new Guard;
    guard->next = guards.load(std::memory_order_relaxed);
  }
  guard->damaged.store(damaged, std::memory_order_release);
  guard->end.store(end, std::memory_order_release);
  guard->begin.store(begin, std::memory_order_release);
  if (fresh) guards.store(guard, std::memory_order_release);
}

void remove_guard(std::uintptr_t begin) {
  const std::lock_guard lock(guards_mutex);
  for (Guard* guard = guards.load(std::memory_order_acquire); guard != nullptr; guard = guard->next) {
    if (guard->begin.load(std::memory_order_relaxed) == begin) guard->begin.store(0, std::memory_order_release);
  }
}

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::string& path) : value_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~FileDescriptor() {
    if (value_ >= 0) close(value_);
  }
  int value() const { return value_; }

 private:
  int value_;
};

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw SegmentError("index file " + path + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

Mapping::Mapping(const std::string& path) {
  const FileDescriptor file(path);
  struct stat status = {};
  if (file.value() < 0 || fstat(file.value(), &status) != 0) fail(path, "cannot be opened");
  if (status.st_size <= 0) throw SegmentError("index file " + path + " is empty; build the index again");
  size_ = static_cast<std::size_t>(status.st_size);
  void* address = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.value(), 0);
  if (address == MAP_FAILED) fail(path, "cannot be mapped");
  data_ = static_cast<const std::byte*>(address);
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  try {
    add_guard(begin, begin + size_, &damaged_);
  } catch (...) {
    munmap(address, size_);
    throw;
  }
}

Mapping::~Mapping() {
  remove_guard(reinterpret_cast<std::uintptr_t>(data_));
  munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace agentspec
