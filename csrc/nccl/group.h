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
#include "commlib/stamps.h"
#include "nccl/algorithm.h"
#include "nccl/arena.h"
#include "nccl/deadline.h"
#include "nccl/engine.h"
#include "nccl/fault.h"
#include "nccl/kernels.h"
#include "nccl/order.h"
#include "nccl/watch.h"
#include "plan/table.h"
#include "record/record.h"

namespace commlib::ffi {
class Kernel;
}

namespace commlib::nccl {

class Group {
 public:
  struct Settings {
    ncclComm_t comm;
    int rank;
    int world;
    double timeout_s;
    size_t user_bytes;
    unsigned multiprocessors;  // of the smallest GPU of all ranks
    unsigned max_sms;          // that calls take at most; 0: no limit
    bool first;                // no rank has another communicator on its GPU
  };

  explicit Group(const Settings& settings);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Symmetric memory, step by step: see Arena. Without it only NCCL's algorithms that want plain
  // tensors run, and `why` says what is missing.
  void make_arena();
  void without_arena(std::string why) { no_arena_ = std::move(why); }
  // Once all ranks are set up; `pids` of the ranks, 0 for those that cannot be watched; `id` is one
  // number on all ranks, for the record of calls.
  void start(const std::vector<int>& pids, uint64_t id, Builder builder);

  // Every algorithm of this backend, as its row says it (csrc/plan/row.h); then the plan that
  // chooses among them (csrc/plan/table.h).
  void learn(const std::string& rows);
  void set_plan(const std::string& text) { plan_.set(text, has_arena(), max_sms_); }
  // Stamps calls from now on, and lets their kernels mark their phases; null: no longer.
  void stamp(Stamps* stamps);
  Stamps* stamps() const { return stamps_; }
  // The kernel of the last call that was stamped; its marks are the device's to write.
  const Function& stamped() const { return stamped_; }
  // Calls from now on are, or are not, part of another one.
  void set_inner(bool inner) { inner_ = inner; }

  // Calls come from any thread, whatever GPU is current there, or none.
  void run(const Call& call, size_t plan_bytes, bool symmetric, CUstream stream);
  // send_recv as the plan has it; `sends` or receives.
  void message(const Call& call, int peer, bool sends, CUstream stream);
  // Whether a graph is being captured there.
  bool captures(CUstream stream) const;
  // Whether the stream has come this far, after `wait_s` at most; raises if the communicator has
  // ended.
  bool wait(CUstream stream, double wait_s);

  bool reduces(DType dtype, RedOp redop) const { return plan_.reduces(dtype, redop); }
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
  // The native half of an algorithm: calls of NCCL's, or a kernel.
  struct Native {
    const Algorithm* vendor;
    int kernel;
    std::shared_ptr<ffi::Kernel> ffi;  // null: it is ours
  };
  void fail_unlimited(const Call& call, const Choice* usual) const;
  [[noreturn]] void fail_unplanned(const Call& call, size_t plan_bytes) const;
  std::string describe(uint64_t what) const;  // Job::what, in words
  // The multiprocessors that a call is held to; 0: all are its own.
  unsigned limit_of(const Call& call) const;
  unsigned max_blocks(const Shape& shape, const Call& call, const Kernels::Instance& instance,
                      unsigned threads) const;
  void launch(const Call& call, const Choice& choice, CUstream stream, uint64_t capture);
  struct Size {
    unsigned blocks, threads;
  };
  void launch_in_order(const Kernels::Instance& instance, Job& job, const void* more,
                       const Size& size, CUstream stream, uint64_t capture);
  // Data that copy engines move.
  void pull(const Call& call, const Choice& choice, CUstream stream, uint64_t capture);
  Copies copies_of(const Call& call, const Moves& mine, const Reads& reads) const;
  // Rows: those of all ranks summed and worked on by one kernel; by another call and a kernel
  // behind it; of this rank alone, whose sums lie at `in`.
  void run_rows(const Call& call, const Choice& choice, CUstream stream, uint64_t capture);
  void compose_rows(const Call& call, CUstream stream);
  const Kernels::Instance& own_rows_kernel(const Call& call);
  void finish_rows(const Call& call, const Kernels::Instance& kernel, const unsigned char* in,
                   int64_t stride_bytes, CUstream stream);
  static void copy_rows(unsigned char* to, const Call& call, CUstream stream);
  void vendor(const Call& call, int algorithm, CUstream stream, uint64_t capture);
  std::shared_ptr<ffi::Kernel> make_ffi(const Row& row, void* function);
  void run_ffi(const Call& call, int algorithm, CUstream stream, uint64_t capture);
  void look_at_ffi();
  void tick();
  void stop_watching();
  // Writes into every peer's memory that this rank has ended it, and why.
  void tell_peers(Ending why);
  void fetch_progress();
  void record_progress();
  // Keeps a call for readers of the record: until it is on the stream, it is under way.
  class Recorded;
  record::What recorded(const Call& call, const Choice& choice, CUstream stream, uint64_t capture);

  int rank_;
  int world_;
  ncclComm_t comm_;
  size_t user_bytes_;
  unsigned max_sms_;
  unsigned max_blocks_;  // of a grid
  double timeout_s_;
  CUcontext context_ = nullptr;
  std::unique_ptr<Arena> arena_;
  std::string no_arena_ = "no symmetric memory was asked for";
  unsigned char* staged_ = nullptr;
  unsigned char* scratch_ = nullptr;
  Kernels kernels_;
  PlanTable plan_;
  std::vector<Native> natives_;  // of the plan's rows
  std::vector<uint16_t> names_;  // of those, in the record
  std::unique_ptr<record::Record> record_;
  uint64_t calls_ = 0;
  bool inner_ = false;
  Order order_;
  Fault fault_;
  Deadline deadline_;
  Engine engine_;
  std::unique_ptr<Watch> watch_, ticks_;  // one that never asks the driver, one that does
  CUstream own_stream_ = nullptr;         // for words between host and arena
  Job job_{};                             // what no call changes
  Stamps* stamps_ = nullptr;
  Function stamped_;
};

}  // namespace commlib::nccl
