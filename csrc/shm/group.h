// The calls of a rank: which algorithm the plan names for one, and what that algorithm needs beyond
// the steps of shm/protocol.h: chunks as the plan cuts them, reductions, and other calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "commlib/call.h"
#include "commlib/reduce.h"
#include "plan/table.h"
#include "shm/algorithm.h"
#include "shm/protocol.h"

namespace commlib::shm {

class COMMLIB_API Group : public Protocol {
 public:
  Group(std::shared_ptr<Segment> segment, int rank, double timeout_s, const ReduceTable* reduce,
        bool checked);

  // Every algorithm of this backend, as its row says it (csrc/plan/row.h); then the plan that
  // chooses among them (csrc/plan/table.h).
  void learn(const std::string& rows);
  void set_plan(const std::string& text) { plan_.set(text, true); }
  // Calls from now on are, or are not, part of another one.
  void set_inner(bool inner) { inner_ = inner; }

  // Runs `call` with the algorithm the plan names for `plan_bytes`; symmetric: every tensor lies in
  // this rank's arena.
  void run(const Call& call, size_t plan_bytes, bool symmetric);

  // For a symmetric algorithm that found a rank with a plain tensor: what the plan names for plain
  // tensors.
  void run_plain(const Call& call);
  // For an algorithm that is made of another call: what the plan names for that.
  void run_part(const Call& call, size_t plan_bytes);

  // --- for algorithms
  // Protocol::begin, with what ranks compare of this call.
  void begin(const Call& call);
  // Whether the peers are to read `call.in` in place: the plan wants it and the machine allows it.
  bool pulls(const Call& call) const;
  bool prefers_pull(const Call& call) const;  // what the plan alone says
  void reduce(const Call& call, void* out, const void* const* sources, size_t count) const {
    const During reducing(stamps(), Phase::reduce);
    reduce_->fn[static_cast<int>(call.dtype)][static_cast<int>(call.redop)](out, sources, world(),
                                                                            count);
  }
  // The two halves of a row's norm.
  AddFn add_rows(DType dtype) const { return reduce_->add[static_cast<int>(dtype)]; }
  NormFn norms(DType dtype) const { return reduce_->norm[static_cast<int>(dtype)]; }
  bool reduces(DType dtype, RedOp redop) const { return plan_.reduces(dtype, redop); }
  // As the plan has it, else as the row of the plain algorithm.
  size_t chunk_bytes() const {
    if (chunk_bytes_ == 0) fail("CommError", "an algorithm has chunks, its row no chunk_bytes");
    return chunk_bytes_;
  }
  // The algorithm under way, which is a function of tvm-ffi's.
  void run_ffi(const Call& call);

 private:
  struct Ffi;
  // All ranks add the same ones, before anything else lies in their arenas.
  void add_ffi(const Row& row, void* function);
  const Choice& plain_choice(const Call& call) const;
  Descriptor descriptor(const Call& call) const;
  void run_local(const Call& call);
  void run_planned(const Call& call, size_t plan_bytes, bool symmetric);
  const Algorithm& algorithm(const Choice& choice) {
    running_ = static_cast<size_t>(choice.algorithm);
    return *algorithms_[running_];
  }

  bool checked_;
  const ReduceTable* reduce_;
  PlanTable plan_;
  std::vector<const Algorithm*> algorithms_;  // the native halves of the plan's rows
  std::vector<uint16_t> recorded_;            // their names' places in the record
  std::shared_ptr<Ffi> ffi_;                  // null: none
  size_t running_ = 0;                        // the one under way

  bool prefers_pull_ = false;  // the plan wants peers to read large tensors in place
  size_t chunk_bytes_ = kMaxChunkBytes;
  size_t plan_bytes_ = 0;
  bool inner_ = false;
  std::atomic<bool> busy_{false};
};

}  // namespace commlib::shm
