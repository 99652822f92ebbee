// Stamps of a rank's calls on the host: which phase began when. A group that nobody watches has
// none, and a place where a phase begins costs it a branch that is never taken.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "commlib/phases.h"

namespace commlib {

class Stamps {
 public:
  // Room for so many; later ones are counted and not kept.
  explicit Stamps(size_t room) : words_(2 * (room + 1)) {}

  // From now on the rank is in this phase; returns that before. Far from the code of calls, which
  // are not to be larger for it.
  __attribute__((cold, noinline)) Phase enter(Phase phase) {
    const Phase before = phase_;
    if (phase == before) return before;
    phase_ = phase;
    const auto at = static_cast<size_t>(2 * ++words_[0]);
    if (at >= words_.size()) return before;
    words_[at] = now_ns();
    words_[at + 1] = static_cast<int64_t>(phase);
    return before;
  }
  // How many stamps there were, and 0; then time and phase of each.
  std::vector<int64_t>& words() { return words_; }

 private:
  // The clock of Python's time.perf_counter_ns(), one for all processes.
  static int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
  }

  std::vector<int64_t> words_;
  Phase phase_ = Phase::python;
};

inline void enter(Stamps* stamps, Phase phase) {
  if (__builtin_expect(stamps != nullptr, 0)) stamps->enter(phase);
}

// A phase, and after it again the one before.
class During {
 public:
  During(Stamps* stamps, Phase phase) : stamps_(stamps) {
    if (__builtin_expect(stamps != nullptr, 0)) before_ = stamps->enter(phase);
  }
  ~During() { enter(stamps_, before_); }
  During(const During&) = delete;
  During& operator=(const During&) = delete;

 private:
  Stamps* stamps_;
  Phase before_ = Phase::python;
};

}  // namespace commlib
