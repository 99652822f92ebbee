// Waiting for another rank: spin, then yield, then sleep; every wait has a deadline and sees a dead
// peer.
//
// Patterns of use:
//   publish:  write the data; `counter.store(value, release)`; `waiter.ring(header)`   (wakes
//   whoever sleeps) await:    `waiter.await(counter, value, what)` (then read the data)
//
// A sleeper re-checks at least every millisecond, so a wake-up lost between a publisher's store and
// its look at `sleepers` costs a millisecond at most and the publishing side needs no fence.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "commlib/stamps.h"
#include "record/record.h"
#include "shm/layout.h"
#include "shm/segment.h"

namespace commlib::shm {

inline void relax() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// What a rank waits for, so that an error can say it.
struct Awaited {
  enum Kind : uint8_t { line, consumed, done, verdict, posted, message, room } kind;
  int rank;        // the peer
  uint64_t seq;    // the operation (or message) it belongs to
  uint64_t value;  // of the counter
  Descriptor what;
};

// "rank 1", "ranks 0, 1 and 3".
std::string rank_list(const std::vector<int>& ranks);

class COMMLIB_API Waiter {
 public:
  Waiter(std::shared_ptr<Segment> segment, int rank, double timeout_s);
  ~Waiter();
  record::Record& record() { return record_; }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // Returns once `counter` has reached `value`; throws Failure or Interrupted otherwise.
  // `progress`, if any, runs while waiting (a sender empties its inbox there).
  void await(const Counter& counter, const Awaited& awaited,
             const std::function<void()>* progress = nullptr) {
    if (counter.load(std::memory_order_acquire) >= awaited.value) return;
    const During waiting(stamps, Phase::wait);
    for (int i = 0; i < brief_spins_; ++i) {
      if (counter.load(std::memory_order_acquire) >= awaited.value) return;
      relax();
    }
    await_long(counter, awaited, progress);
  }

  // Wakes sleeping ranks after something was published.
  void ring() {
    if (segment_->header()->sleepers.load(std::memory_order_relaxed) != 0) wake_all();
  }

  Stamps* stamps = nullptr;  // of this rank's calls, while somebody wants them

  bool ended() const {
    return segment_->header()->ending.state.load(std::memory_order_acquire) != 0;
  }
  // Throws if the communicator has ended.
  void check_alive() {
    if (ended()) throw_ending();
  }
  // Copies memory of the process of rank `awaited.rank`, which allows that.
  void pull(const Awaited& awaited, uint64_t address, void* to, size_t bytes);
  // Looks at every peer now; throws PeerLost when one is gone.
  void check_peers();
  // Ends the communicator for all ranks (the first one to say so is heard) and throws what was
  // recorded.
  [[noreturn]] void end(const char* kind, const std::string& why);
  void record_ending(const char* kind, const std::string& why);

  // This rank has closed: wakes ranks that wait for it, and threads of its own that still wait,
  // which then throw Closed.
  void announce_close() {
    closed_.store(true);
    record_.close();
    wake_all();
  }
  // Run in place of sleeping with the interpreter's lock held: set by the binding.
  struct Hooks {
    bool (*interrupted)() = nullptr;  // a signal handler raised
    void* (*release)() = nullptr;     // give up the interpreter lock
    void (*reacquire)(void*) = nullptr;
  };
  static Hooks hooks;
  // Set while the caller holds the interpreter's lock; a long wait gives it up.
  static thread_local bool holds_interpreter
      __attribute__((tls_model("initial-exec"), visibility("hidden")));

 private:
  void await_long(const Counter& counter, const Awaited& awaited,
                  const std::function<void()>* progress);
  void await_unlocked(const Counter& counter, const Awaited& awaited,
                      const std::function<void()>* progress);
  bool on_my_core(int rank);
  void spread();
  void sleep_briefly(const Counter& counter, uint64_t value, int64_t nanoseconds);
  void wake_all();
  void look_at_peers(const Counter& counter, const Awaited& awaited);
  [[noreturn]] void time_out(const Awaited& awaited);
  [[noreturn]] void throw_ending();
  std::string describe(const Awaited& awaited) const;
  const Counter& counter_of(const Awaited& awaited, int rank) const;
  const Line& newest_line(int rank) const;
  bool is_behind(const Awaited& awaited, int rank) const;

  std::shared_ptr<Segment> segment_;
  int rank_;
  int world_;
  double timeout_s_;
  int brief_spins_;  // before anything else is looked at
  int spins_;        // after that
  int64_t yield_ns_;
  std::atomic<uint32_t> shared_waits_{0};  // threads of a rank may wait at once
  std::atomic<bool> closed_{false};
  std::vector<int> pidfds_;
  record::Record record_;
};

record::Identity identity_of(const Segment& segment, int rank, double timeout_s);
// All that ranks must agree on, as a number.
inline uint64_t raw(Descriptor what) {
  what.source = 0;  // ranks may differ in it
  uint64_t bits;
  std::memcpy(&bits, &what, sizeof(bits));
  return bits;
}
// "all_reduce #12 (float32, sum, 1024 elements)"
std::string describe(const Descriptor& what, uint64_t seq);
// Tells the peers where this rank may run; before any Waiter is made.
void publish_cores(RankControl* control);

}  // namespace commlib::shm
