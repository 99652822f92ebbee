// One call at a time: a second thread in the same place would corrupt its counters.
#pragma once

#include <atomic>

#include "commlib/check.h"

namespace commlib::shm {

class Exclusive {
 public:
  // `name` is the call, `place` what only one thread may be inside of.
  Exclusive(std::atomic<bool>& busy, const char* name, const char* place) : busy_(busy) {
    if (busy_.exchange(true, std::memory_order_acquire)) {
      fail("CommError", name, " was called while another thread is inside ", place,
           " of this communicator; ", "use one communicator per thread (split) or async_op=True");
    }
  }
  ~Exclusive() { busy_.store(false, std::memory_order_release); }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

 private:
  std::atomic<bool>& busy_;
};

}  // namespace commlib::shm
