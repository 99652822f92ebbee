// What the Python half of a rank holds, and its entry points by name.
#pragma once

#include <tvm/ffi/tvm_ffi.h>

#include <memory>
#include <string>

#include "commlib/check.h"
#include "shm/mailbox.h"

namespace commlib::binding {

// Everything a rank holds; tensors from empty() and bound functions keep it alive past close().
struct State {
  std::shared_ptr<shm::Segment> segment;
  int rank = 0;
  std::unique_ptr<shm::Group> group;
  std::unique_ptr<shm::Mailbox> mailbox;
  bool closed = false;

  shm::Group& open() {
    if (closed || !group)
      fail("CommError", "this communicator is closed; call commlib.init() for a new one");
    return *group;
  }
};
using StatePtr = std::shared_ptr<State>;

// The entry point `name` ("broadcast", "all_reduce_sum_into", ...) bound to one communicator.
tvm::ffi::Function bind_call(const StatePtr& state, const std::string& name);

}  // namespace commlib::binding
