// The interpreter's lock around the work of a call, and signals while it waits.
#pragma once

#include "binding/python.h"
#include "shm/wait.h"

namespace commlib::binding {

// What PyEval_SaveThread gave up is taken again; a thread that finds the interpreter ended stays.
void take_interpreter(void* state);

// Gives the interpreter's lock up: around what may take long.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() { take_interpreter(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  void* state_;
};

// Calls enter with the interpreter's lock held (its release costs 45 ns): a short call keeps it
// until a wait becomes long, a call that moves much gives it up at once.
class InterpreterLock {
 public:
  static constexpr size_t kKeepBelowBytes = 64 << 10;

  explicit InterpreterLock(size_t bytes) {
    if (bytes < kKeepBelowBytes) {
      shm::Waiter::holds_interpreter = true;
    } else {
      state_ = PyEval_SaveThread();
    }
  }
  ~InterpreterLock() {
    if (state_) {
      take_interpreter(state_);
    } else {
      shm::Waiter::holds_interpreter = false;
    }
  }
  InterpreterLock(const InterpreterLock&) = delete;
  InterpreterLock& operator=(const InterpreterLock&) = delete;

 private:
  void* state_ = nullptr;
};

// Lets waits of the shm backend give the lock up and see signals.
void connect_interpreter();

}  // namespace commlib::binding
