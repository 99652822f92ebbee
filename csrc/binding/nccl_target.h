// What the entry points see of the nccl backend.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "binding/arguments.h"
#include "binding/interpreter.h"
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
    device_ = {kCuda, device};
  }
  void stamp(const std::shared_ptr<Stamps>& owner) {
    stamps_owner_ = owner;
    stamps = owner.get();
    group->stamp(stamps);
  }
  Device device() const { return device_; }
  void close() { closed_ = true; }
  bool closed() const { return closed_; }

  const char* backend() const override { return "nccl"; }
  bool reduces(DType dtype, RedOp redop) const override { return group->reduces(dtype, redop); }

  void run(Call& call, size_t plan_bytes, Placed placed) override {
    group->run(call, plan_bytes, in_arena(placed), stream());
  }
  void send(const Buffer& x, int to) override { group->message(message_of(x), to, true, stream()); }
  void receive(const Buffer& x, int from) override {
    group->message(message_of(x), from, false, stream());
  }
  void send_receive(const Buffer& x, int to, const Buffer& out, int from) override {
    Call call = message_of(x);
    call.out = out.data;
    call.root = to;
    call.source = from;
    const auto out_bytes = static_cast<int64_t>(out.bytes());
    call.out_counts = &out_bytes;
    group->run(call, std::max(x.bytes(), out.bytes()), false, stream());
  }
  // Waits on the host too, unless a graph is being captured: then the replay waits. The deadline is
  // the kernel's, or the watch's for NCCL's own.
  void finish_barrier() override {
    constexpr double kSliceS = 0.01;  // between two, Python sees signals
    if (group->captures(stream())) return;
    while (!came(kSliceS)) {
      if (PyErr_CheckSignals() != 0) throw python::Raised();
    }
  }
  // Torch's current stream.
  CUstream stream() const { return static_cast<CUstream>(current_stream(device_)); }

 private:
  bool came(double wait_s) {
    const CUstream behind = stream();
    const Unlocked unlocked;
    return group->wait(behind, wait_s);
  }
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

  std::shared_ptr<Stamps> stamps_owner_;
};
using NcclTargetPtr = std::shared_ptr<NcclTarget>;

// Memory that torch asks for on this thread, inside its pool for symmetric memory, comes from this
// arena until the matching call with null.
void serve_pool(NcclTargetPtr target);

}  // namespace commlib::binding
