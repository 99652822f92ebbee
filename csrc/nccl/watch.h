// A thread that notices when a peer's process ends, and that ticks for deadlines nobody else keeps.
//
// It sleeps in poll() on one pidfd per peer and on an eventfd that stops it: no peer lost and no
// ticker, no wake-up. It takes no signals and, threads being what they are, never runs in a forked
// child.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace commlib::nccl {

class Watch {
 public:
  // `pids` by rank; 0 is not watched: this process, and peers of another PID namespace or host.
  // Throws PeerLost if a peer is gone already.
  explicit Watch(const std::vector<int>& pids);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Why peers are not watched though their pids are known (a kernel before 5.3, a sandbox); empty
  // otherwise. The ticker runs all the same.
  const std::string& blind() const { return blind_; }

  // Before start(): `tick` is called about every `period_ms`.
  void set_ticker(std::function<void()> tick, int period_ms);
  // From a tick: how long it is to the next one.
  void set_period(int period_ms) { period_ms_ = period_ms; }
  // `lost` is called once for each peer whose process ended, whatever it did before: whether that
  // is a loss or an orderly end is for the callee to know. Callbacks run on the thread; what one
  // throws ends the thread, and goes to `failed`.
  void start(std::function<void(int rank)> lost, std::function<void(const char* why)> failed);
  // Returns when no callback runs any more; from inside a callback, at once. Idempotent.
  void stop();
  // The same at the end of a process, where a callback may be inside the driver for ever: waits
  // `wait_s` at most.
  void stop_within(double wait_s);

 private:
  static void* enter(void* self);
  void run();
  bool wake();
  void close_descriptors();

  std::vector<int> pidfds_;  // by rank; -1: not watched
  std::string blind_;
  int wake_ = -1;
  std::function<void(int)> lost_;
  std::function<void(const char*)> failed_;
  std::function<void()> tick_;
  int period_ms_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> started_{false};
  pthread_t thread_ = {};
  pid_t owner_;
};

}  // namespace commlib::nccl
