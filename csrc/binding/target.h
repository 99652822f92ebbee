// What a backend offers the entry points: who its ranks are, which tensors are its own, and a way
// to run a call whose arguments were checked.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "binding/tensor.h"
#include "commlib/call.h"
#include "commlib/stamps.h"

namespace commlib::binding {

struct Buffer;

// The tensors whose place decides whether a zero-copy algorithm applies; null: none can.
struct Placed {
  const Buffer* in = nullptr;
  const Buffer* out = nullptr;
};

// "cuda:1", as torch calls it.
inline std::string name_of(const Device& device) {
  if (device.type == kCpu || device.type == kCudaHost) return "the CPU";
  return device.type == kCuda ? text("cuda:", device.index) : "another kind of device";
}

class Target : public std::enable_shared_from_this<Target> {
 public:
  virtual ~Target() = default;

  int rank() const { return rank_; }
  int world() const { return world_; }

  Stamps* stamps = nullptr;     // of this rank's calls, while somebody wants them
  bool keeps_versions = false;  // of the tensors that calls write, as torch.distributed's calls do

  void writes(const Tensor& tensor) const {
    if (!keeps_versions) torch.raise_version(tensor.object());
  }

  void open() const {
    if (closed_) fail("Closed", "this communicator is closed; call commlib.init() for a new one");
  }
  bool owns(const Device& device) const {
    return device.type == device_.type && (device.type == kCpu || device.index == device_.index);
  }
  [[noreturn]] void refuse(const Device& device, const char* name) const {
    fail("ValueError", name, " is on ", name_of(device), ", but rank ", rank_,
         "'s communicator is on ", name_of(device_), " (backend ", backend(),
         "); move it with .to(comm.device)");
  }
  virtual const char* backend() const = 0;
  virtual bool reduces(DType dtype, RedOp redop) const = 0;

  // Runs `call` with the algorithm the plan names for `plan_bytes`: ShmTarget in shm_group.cc,
  // NcclTarget in nccl_target.h.
  virtual void run(Call& call, size_t plan_bytes, Placed placed) = 0;
  // Shows every rank `count` numbers of each, as part of another call. False: ranks of this backend
  // do not meet on the host, as a CUDA graph could not hold that.
  virtual bool exchange(const int64_t*, size_t, int64_t*) { return false; }
  virtual void send(const Buffer& x, int to) = 0;
  virtual void receive(const Buffer& x, int from) = 0;
  // Both at once: neither waits for the other.
  virtual void send_receive(const Buffer& x, int to, const Buffer& out, int from) = 0;
  // Makes the host wait too, where run() only put the barrier on a stream.
  virtual void finish_barrier() {}

 protected:
  int rank_ = 0;
  int world_ = 1;
  Device device_ = {kCpu, 0};
  bool closed_ = false;
};
using TargetPtr = std::shared_ptr<Target>;

// The same ranks, for one call that takes so many multiprocessors at most, or, told -1, spares the
// GPU. CPUs have none to save.
class Limited final : public Target {
 public:
  Limited(Target& all, int64_t max_sms)
      : Target(all),
        all_(all),
        max_sms_(max_sms < 0 ? kSparing
                             : static_cast<uint32_t>(std::min<int64_t>(max_sms, kSparing - 1))) {}
  const char* backend() const override { return all_.backend(); }
  bool reduces(DType dtype, RedOp redop) const override { return all_.reduces(dtype, redop); }
  void run(Call& call, size_t plan_bytes, Placed placed) override {
    call.max_sms = max_sms_;
    all_.run(call, plan_bytes, placed);
  }
  bool exchange(const int64_t* mine, size_t count, int64_t* everyone) override {
    return all_.exchange(mine, count, everyone);
  }
  void send(const Buffer& x, int to) override { all_.send(x, to); }
  void receive(const Buffer& x, int from) override { all_.receive(x, from); }
  void send_receive(const Buffer& x, int to, const Buffer& out, int from) override {
    all_.send_receive(x, to, out, from);
  }

 private:
  Target& all_;
  const uint32_t max_sms_;
};

// Lets a target stamp its calls, or no longer, if there is room for none; the tensor has the stamps
// and keeps them.
template <class T>
python::Object* stamped(T& target, int64_t room) {
  const auto stamps = room > 0 ? std::make_shared<Stamps>(static_cast<size_t>(room)) : nullptr;
  target.stamp(stamps);
  if (!stamps) return python::none();
  auto& words = stamps->words();
  return tensor_over(words.data(), static_cast<int64_t>(words.size()), {kInt, 64, 1}, {kCpu, 0},
                     [stamps] {});
}

// A tensor of bytes in the arena of the target's group; it keeps what the rank holds alive.
template <class T>
python::Object* arena_tensor(const std::shared_ptr<T>& target, int64_t bytes, Device device) {
  if (bytes < 0) fail("ValueError", "empty() of ", bytes, " bytes; shapes are 0 or more");
  target->open();
  void* const memory = target->group->arena().allocate(static_cast<size_t>(bytes));
  return tensor_over(memory, bytes, {kUInt, 8, 1}, device,
                     [target, memory] { target->group->arena().free(memory); });
}

}  // namespace commlib::binding
