#include "nccl/watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

#include "commlib/check.h"

namespace commlib::nccl {
namespace {

#ifdef SYS_pidfd_open
constexpr long kPidfdOpen = SYS_pidfd_open;
#else
constexpr long kPidfdOpen = 434;  // one number on all architectures; older headers lack it
#endif

// The watch whose thread this is; to be asked from inside a callback.
thread_local const Watch* running = nullptr;

int64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1000000;
}

}  // namespace

Watch::Watch(const std::vector<int>& pids) : pidfds_(pids.size(), -1), owner_(getpid()) {
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) fail("CommError", "eventfd: ", std::strerror(errno), "; raise `ulimit -n`");
  for (size_t r = 0; r < pids.size(); ++r) {
    if (pids[r] <= 0 || pids[r] == owner_) continue;
    pidfds_[r] = static_cast<int>(syscall(kPidfdOpen, pids[r], 0));
    if (pidfds_[r] >= 0) continue;
    const int error = errno;
    if (error == ESRCH) {
      close_descriptors();
      fail("PeerLost", "rank ", r, " (process ", pids[r], ") died while the communicator was made");
    }
    blind_ = text("cannot watch process ", pids[r], " of rank ", r, ": ", std::strerror(error),
                  "; it needs Linux 5.3 and one PID namespace for all ranks");
  }
}

Watch::~Watch() {
  stop();
  close_descriptors();
}

void Watch::close_descriptors() {
  for (int& fd : pidfds_) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  if (wake_ >= 0) ::close(wake_);
  wake_ = -1;
}

void Watch::set_ticker(std::function<void()> tick, int period_ms) {
  tick_ = std::move(tick);
  period_ms_ = std::max(period_ms, 1);
}

void Watch::start(std::function<void(int)> lost, std::function<void(const char*)> failed) {
  if (started_.exchange(true)) return;
  lost_ = std::move(lost);
  failed_ = std::move(failed);
  // The thread inherits the mask: a signal must find one that Python knows.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&thread_, nullptr, enter, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == 0) return;
  started_ = false;
  fail("CommError", "cannot start a thread: ", std::strerror(error));
}

// Whether there is a thread to wait for: a forked child has neither the thread nor a business with
// the parent's eventfd.
bool Watch::wake() {
  if (!started_ || getpid() != owner_) return false;
  stopping_.store(true);
  const uint64_t one = 1;
  // Nothing to do about a failure: the counter is full, so the thread is awake already.
  if (write(wake_, &one, sizeof(one)) < 0) errno = 0;
  return running != this;
}

void Watch::stop() {
  if (!wake()) return;
  pthread_join(thread_, nullptr);
  started_ = false;
}

void Watch::stop_within(double wait_s) {
  if (!wake()) return;
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += static_cast<time_t>(wait_s);
  if (pthread_timedjoin_np(thread_, nullptr, &until) == 0) started_ = false;
}

void* Watch::enter(void* self) {
  running = static_cast<Watch*>(self);
  try {
    static_cast<Watch*>(self)->run();
  } catch (const std::exception& error) {
    static_cast<Watch*>(self)->failed_(error.what());
  }
  return nullptr;
}

void Watch::run() {
  std::vector<pollfd> entries;
  for (const int fd : pidfds_) entries.push_back({fd, POLLIN, 0});  // poll() skips fd -1
  entries.push_back({wake_, POLLIN, 0});
  int64_t next_tick = now_ms() + period_ms_;
  while (!stopping_.load()) {
    const int64_t left = tick_ ? std::max<int64_t>(next_tick - now_ms(), 0) : -1;
    const int ready = poll(entries.data(), entries.size(), static_cast<int>(left));
    if (stopping_.load()) return;
    for (size_t r = 0; ready > 0 && r < pidfds_.size(); ++r) {
      if (entries[r].revents == 0) continue;
      entries[r].fd = -1;
      lost_(static_cast<int>(r));
      if (stopping_.load()) return;
    }
    if (!tick_ || now_ms() < next_tick) continue;
    tick_();
    next_tick = now_ms() + period_ms_;
  }
}

}  // namespace commlib::nccl
