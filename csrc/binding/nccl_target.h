// What the entry points see of the nccl backend.
#pragma once

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <memory>
#include <string>

#include "binding/arguments.h"
#include "binding/target.h"
#include "nccl/group.h"

namespace commlib::binding {

// Everything a rank holds; tensors from empty() and bound functions keep it alive past close().
class NcclTarget final : public Target {
 public:
  std::unique_ptr<nccl::Group> group;

  void place(int rank, int world, int device) {
    rank_ = rank;
    world_ = world;
    device_ = {kDLCUDA, device};
  }
  DLDevice device() const { return device_; }
  void close() { closed_ = true; }
  bool closed() const { return closed_; }

  void refuse(const DLDevice& device, const char* name) const override {
    const std::string where =
        device.device_type == kDLCUDA
            ? text("cuda:", device.device_id)
            : std::string(device.device_type == kDLCPU ? "the CPU" : "another device");
    fail("ValueError", name, " is on ", where, ", but rank ", rank_,
         "'s communicator is on cuda:", device_.device_id,
         " (backend nccl); move it with .to(comm.device)");
  }
  bool reduces(DType dtype, RedOp redop) const override { return group->reduces(dtype, redop); }

  void run(Call& call, size_t plan_bytes, Placed placed) override {
    group->run(call, plan_bytes, in_arena(placed), stream());
  }
  void send(const Buffer& x, int to) override { group->message(message_of(x), to, true, stream()); }
  void receive(const Buffer& x, int from) override {
    group->message(message_of(x), from, false, stream());
  }
  // Torch's current stream: the caller's tensors brought it along.
  CUstream stream() const {
    return static_cast<CUstream>(TVMFFIEnvGetStream(device_.device_type, device_.device_id));
  }

 private:
  bool in_arena(const Placed& placed) const {
    if (!placed.in || !group->has_arena()) return false;
    const Buffer &in = *placed.in, &out = *placed.out;
    return group->arena().offset_of(in.data, in.bytes()) >= 0 &&
           (out.data == in.data || group->arena().offset_of(out.data, out.bytes()) >= 0);
  }
  static Call message_of(const Buffer& x) {
    Call call{Op::send_recv, x.dtype};
    call.in = call.out = x.data;
    call.count = x.count;
    return call;
  }
};
using NcclTargetPtr = std::shared_ptr<NcclTarget>;

// Memory that torch asks for on this thread, inside its pool for symmetric memory, comes from this
// arena until the matching call with null.
void serve_pool(NcclTargetPtr target);

}  // namespace commlib::binding
