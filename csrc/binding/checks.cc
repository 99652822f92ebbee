// The checks of calls alone, for a backend whose collectives are Python's.
#include "binding/calls.h"

namespace commlib::binding {
namespace {

// A call that passes does nothing here.
class Checks final : public Target {
 public:
  Checks(int64_t rank, int64_t world, Device device) {
    rank_ = static_cast<int>(rank);
    world_ = static_cast<int>(world);
    device_ = device;
  }
  const char* backend() const override { return "torch"; }
  bool reduces(DType, RedOp) const override { return true; }  // the engine says what it lacks
  void run(Call&, size_t, Placed) override {}
  void send(const Buffer&, int) override {}
  void receive(const Buffer&, int) override {}
  void send_receive(const Buffer&, int, const Buffer&, int) override {}
};

// `gpu`: -1 is the CPU.
std::unique_ptr<Calls> open_checks(int64_t rank, int64_t world, int64_t gpu) {
  const Device device = gpu < 0 ? Device{kCpu, 0} : Device{kCuda, static_cast<int32_t>(gpu)};
  return std::make_unique<Calls>(Calls{std::make_shared<Checks>(rank, world, device)});
}

// What is done in Python to a tensor, before a call takes it.
void check_tensor(Object* given, const std::string& argument, const std::string& function) {
  Tensor(given, {argument.c_str(), 0, function.c_str()});
}

COMMLIB_MODULE(module) {
  module.add({COMMLIB_METHOD("open_checks", open_checks, "rank, world, gpu"),
              COMMLIB_METHOD("check_tensor", check_tensor, "given, argument, function")});
}

}  // namespace
}  // namespace commlib::binding
