// What a rank holds on GPUs: NCCL's communicator, the arena, kernels and the plan. It runs calls
// whose arguments were checked: finds the algorithm, keeps calls in order over streams, launches.
//
// Calls of one group are made by one thread at a time (the interpreter's lock sees to it).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "commlib/call.h"
#include "commlib/job.h"
#include "commlib/plan_table.h"
#include "nccl/arena.h"
#include "nccl/deadline.h"
#include "nccl/fault.h"
#include "nccl/kernels.h"
#include "nccl/order.h"
#include "nccl/watch.h"

namespace commlib::nccl {

// What a plan says of one range of sizes on GPUs.
struct Choice {
  uint64_t max_bytes;
  int algorithm;  // from 0: NCCL's own, by Group::kVendor + n; else a kernel
  Shape shape;
};

enum class Mode { eager, graph };

class Group {
 public:
  struct Settings {
    ncclComm_t comm;
    int rank;
    int world;
    double timeout_s;
    size_t user_bytes;
  };

  explicit Group(const Settings& settings);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Symmetric memory, step by step: see Arena. Without it only NCCL's algorithms that want plain
  // tensors run, and `why` says what is missing.
  void make_arena();
  void without_arena(std::string why) { no_arena_ = std::move(why); }
  // Once all ranks are set up; `pids` of the ranks, 0 for those that cannot be watched.
  void start(const std::vector<int>& pids, Builder builder);

  int add_kernel(Kernel kernel) { return kernels_.add(std::move(kernel)); }
  PlanTable<Choice>& plan(Mode mode) { return plans_[mode == Mode::graph]; }
  const Choice* find(Mode mode, const Call& call, size_t bytes, bool symmetric) const;
  std::string name_of_algorithm(int algorithm) const;

  void run(const Call& call, size_t plan_bytes, bool symmetric, CUstream stream);
  // send_recv as the plan has it; `sends` or receives.
  void message(const Call& call, int peer, bool sends, CUstream stream);
  // Whether the stream has come this far, after `wait_s` at most; raises if the communicator has
  // ended.
  bool wait(CUstream stream, double wait_s);

  bool reduces(DType dtype, RedOp redop) const;
  // Raises what ended it, asking NCCL too.
  void inspect();
  // Ends it here and for the peers: kernels that wait leave.
  void abort(const std::string& why);
  // Returns whether all ranks came, so that memory may go; `wait_s` bounds the whole.
  bool close(double wait_s);
  void abandon();

  int rank() const { return rank_; }
  int world() const { return world_; }
  ncclComm_t comm() const { return comm_; }
  Arena& arena() { return *arena_; }
  bool has_arena() const { return arena_ != nullptr && no_arena_.empty(); }

  // --- for algorithms
  // Memory of `bytes` that all ranks have at the same place, for an algorithm that stages.
  static constexpr size_t kStagedBytes = 8 << 20;
  unsigned char* staged() const { return staged_; }
  // A few bytes of this GPU that nobody reads.
  unsigned char* scratch() const { return scratch_; }

 private:
  void launch(const Call& call, const Choice& choice, CUstream stream, uint64_t capture);
  void vendor(const Call& call, int algorithm, bool symmetric, CUstream stream, uint64_t capture);
  // Lets what comes next on the stream begin only when what was ahead can be read.
  void settle(CUstream stream);
  void tick();
  void stop_watching();
  // Writes into every peer's memory that this rank has ended it, and why.
  void tell_peers(Ending why);
  void fetch_ended();

  int rank_;
  int world_;
  ncclComm_t comm_;
  size_t user_bytes_;
  double timeout_s_;
  CUcontext context_ = nullptr;
  std::unique_ptr<Arena> arena_;
  std::string no_arena_ = "no symmetric memory was asked for";
  unsigned char* staged_ = nullptr;
  unsigned char* scratch_ = nullptr;
  Kernels kernels_;
  PlanTable<Choice> plans_[2];
  Order order_;
  Fault fault_;
  Deadline deadline_;
  std::unique_ptr<Watch> watch_, ticks_;  // one that never asks the driver, one that does
  CUstream own_stream_ = nullptr;         // for words between host and arena
  Job job_{};                             // what no call changes
};

// NCCL's own algorithms: one file csrc/collectives/<collective>/<name>.cc each, which ends with
// COMMLIB_NCCL_ALGORITHM; commlib/collectives/<collective>.py lists the same name.
enum class Needs {
  nothing,
  staging,
  symmetric
};  // memory of the arena: some, or every tensor in it

struct Algorithm {
  Op op;
  const char* name;
  Needs needs;
  void (*run)(Group&, const Call&, CUstream);
};
int register_algorithm(const Algorithm& algorithm);
const Algorithm& algorithm(int id);
int find_algorithm(Op op, const char* name);  // -1: none

#define COMMLIB_NCCL_ALGORITHM(op, name, needs, function)           \
  [[maybe_unused]] static const int nccl_registered_##op##_##name = \
      ::commlib::nccl::register_algorithm({::commlib::Op::op, #name, Needs::needs, function})

}  // namespace commlib::nccl
