// Stamps of a rank's calls on the host: which phase began when. A group that nobody watches has
// none, and each place where a phase begins costs it one branch.
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

  // From now on the rank is in this phase.
  void enter(Phase phase) {
    if (phase == phase_) return;
    phase_ = phase;
    const auto at = static_cast<size_t>(2 * ++words_[0]);
    if (at >= words_.size()) return;
    words_[at] = now_ns();
    words_[at + 1] = static_cast<int64_t>(phase);
  }
  Phase phase() const { return phase_; }
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
  if (stamps) stamps->enter(phase);
}

// A phase, and after it again the one before.
class During {
 public:
  During(Stamps* stamps, Phase phase)
      : stamps_(stamps), before_(stamps ? stamps->phase() : Phase::python) {
    enter(stamps, phase);
  }
  ~During() { enter(stamps_, before_); }
  During(const During&) = delete;
  During& operator=(const During&) = delete;

 private:
  Stamps* stamps_;
  Phase before_;
};

}  // namespace commlib
