// What a backend offers the entry points: who its ranks are, which tensors are its own, and a way
// to run a call whose arguments were checked.
#pragma once

#include <tvm/ffi/tvm_ffi.h>

#include <memory>
#include <string>

#include "commlib/call.h"

namespace commlib::binding {

struct Buffer;

// The tensors whose place decides whether a zero-copy algorithm applies; null: none can.
struct Placed {
  const Buffer* in = nullptr;
  const Buffer* out = nullptr;
};

class Target {
 public:
  virtual ~Target() = default;

  int rank() const { return rank_; }
  int world() const { return world_; }

  void open() const {
    if (closed_) fail("Closed", "this communicator is closed; call commlib.init() for a new one");
  }
  bool owns(const DLDevice& device) const {
    return device.device_type == device_.device_type &&
           (device.device_type == kDLCPU || device.device_id == device_.device_id);
  }
  [[noreturn]] virtual void refuse(const DLDevice& device, const char* name) const = 0;
  virtual bool reduces(DType dtype, RedOp redop) const = 0;

  // Runs `call` with the algorithm the plan names for `plan_bytes`.
  virtual void run(Call& call, size_t plan_bytes, Placed placed) = 0;
  virtual void send(const Buffer& x, int to) = 0;
  virtual void receive(const Buffer& x, int from) = 0;

 protected:
  int rank_ = 0;
  int world_ = 1;
  DLDevice device_ = {kDLCPU, 0};
  bool closed_ = false;
};
using TargetPtr = std::shared_ptr<Target>;

// The entry point `name` ("broadcast", "all_reduce_sum_into", ...) bound to one communicator.
tvm::ffi::Function bind_call(const TargetPtr& target, const std::string& name);

}  // namespace commlib::binding
