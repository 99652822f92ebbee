// The checks of calls alone, for a backend whose collectives are Python's.
#include <sstream>

#include "binding/calls.h"
#include "binding/recorder.h"

namespace commlib::binding {
namespace {

using Ops = uint32_t;  // a bit for each operation
static_assert(kOps <= 32);
Ops ops_named(const std::string& names) {
  Ops ops = 0;
  std::istringstream list(names);
  for (std::string name; list >> name;) ops |= Ops{1} << static_cast<int>(op_named(name));
  return ops;
}
bool has(Ops ops, Op op) { return ops >> static_cast<int>(planned_as(op)) & 1; }

// A call that passes is entered into the record, and does nothing here.
class Checks final : public Target {
 public:
  Checks(int64_t rank, int64_t world, Device device, RecorderPtr recorder, Ops reducing, Ops rooted)
      : recorder_(std::move(recorder)), reducing_(reducing), rooted_(rooted) {
    rank_ = static_cast<int>(rank);
    world_ = static_cast<int>(world);
    device_ = device;
  }
  const char* backend() const override { return "torch"; }
  bool reduces(DType, RedOp) const override { return true; }  // the engine says what it lacks
  void run(Call& call, size_t, Placed) override {
    if (!recorder_) return;
    recorder_->enter(call, has(reducing_, call.op) ? static_cast<int>(call.redop) : -1,
                     has(rooted_, call.op) ? call.root : -1);
  }
  void send(const Buffer& x, int to) override { enter(half(x, to), {}); }
  void receive(const Buffer& x, int from) override { enter({}, half(x, from)); }
  void send_receive(const Buffer& x, int to, const Buffer& out, int from) override {
    enter(half(x, to), half(out, from));
  }

 private:
  using Half = std::optional<Call>;

  static Call half(const Buffer& x, int peer) {
    return make_call(Op::send_recv, x, x, x.count, RedOp::sum, peer);
  }
  void enter(const Half& sent, const Half& received) {
    if (recorder_) recorder_->enter_message(sent, received);
  }

  const RecorderPtr recorder_;
  const Ops reducing_, rooted_;
};

// `gpu`: -1 is the CPU. `reducing`, `rooted`: names of operations.
std::unique_ptr<Calls> open_checks(int64_t rank, int64_t world, int64_t gpu,
                                   std::optional<const RecorderHandle*> record,
                                   const std::string& reducing, const std::string& rooted) {
  const Device device = gpu < 0 ? Device{kCpu, 0} : Device{kCuda, static_cast<int32_t>(gpu)};
  return std::make_unique<Calls>(
      Calls{std::make_shared<Checks>(rank, world, device, record ? (*record)->recorder : nullptr,
                                     ops_named(reducing), ops_named(rooted))});
}

// What is done in Python to a tensor, before a call takes it.
void check_tensor(Object* tensor, const std::string& argument, const std::string& function) {
  Tensor(tensor, {argument.c_str(), 0, function.c_str()});
}

COMMLIB_MODULE(module) {
  module.add(
      {COMMLIB_METHOD("open_checks", open_checks, "rank, world, gpu, record, reducing, rooted"),
       COMMLIB_METHOD("check_tensor", check_tensor, "tensor, argument, function", "Any")});
}

}  // namespace
}  // namespace commlib::binding
