// The operations, and one call of one of them: what the entry points hand to a backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "commlib/check.h"
#include "commlib/dtype.h"

namespace commlib {

struct RowCall;

constexpr int kMaxRanks = 64;  // of a communicator with native entry points
// As Call::max_sms: no more than the knee of the plan's curve, so that what runs next to the call
// is hardly slowed.
constexpr uint32_t kSparing = UINT32_MAX;

// clang-format off
#define COMMLIB_OPS(X) \
  X(all_reduce)        \
  X(all_reduce_rms_norm) \
  X(all_reduce_epilogue) \
  X(all_gather)        \
  X(all_gatherv)       \
  X(reduce_scatter)    \
  X(reduce_scatterv)   \
  X(broadcast)         \
  X(reduce)            \
  X(all_to_all)        \
  X(all_to_allv)       \
  X(gather)            \
  X(scatter)           \
  X(send_recv)         \
  X(barrier)
// clang-format on

#define COMMLIB_CODE(op) op,
enum class Op : uint8_t { COMMLIB_OPS(COMMLIB_CODE) count };
constexpr int kOps = static_cast<int>(Op::count);
#define COMMLIB_NAME(op) #op,
constexpr const char* kOpNames[] = {COMMLIB_OPS(COMMLIB_NAME)};

inline const char* name_of(Op op) { return kOpNames[static_cast<int>(op)]; }

// The operation whose rules of a plan it goes by: an epilogue of the user's is like that of a norm.
constexpr Op planned_as(Op op) {
  return op == Op::all_reduce_epilogue ? Op::all_reduce_rms_norm : op;
}

inline Op op_named(const std::string& name) {
  for (int op = 0; op < kOps; ++op) {
    if (name == kOpNames[op]) return static_cast<Op>(op);
  }
  fail("ValueError", "unknown collective '", name, "'");
}

// One collective call, after its arguments were checked.
struct Call {
  Op op;
  DType dtype;
  RedOp redop = RedOp::sum;
  int root = 0;  // send_recv: who this rank sends to
  const unsigned char* in = nullptr;
  unsigned char* out = nullptr;
  size_t count = 0;  // elements of one block (of the whole tensor where there are no blocks)
  const int64_t* in_counts = nullptr;   // v-variants: elements to (or of) each rank
  const int64_t* out_counts = nullptr;  // all_to_allv: elements from each rank; send_recv: bytes
  const int64_t* in_starts = nullptr;   // all_to_allv: where each rank's input has them
  uint64_t detail = 0;                  // digest of what `count` does not say (split sizes)
  bool inner = false;                   // part of another call
  bool own_stays = false;               // this rank's own block need not come to its place in `out`
  int source = 0;                       // send_recv: who sends to this rank
  uint32_t max_sms = 0;                 // multiprocessors at most; 0: no limit; or kSparing
  const RowCall* rows = nullptr;        // what is done with each row, here or in the call of a part
  uint64_t in_offset = 0;  // of `in` and `out` in this rank's arena, when they lie there
  uint64_t out_offset = 0;

  size_t element() const { return size_of(dtype); }
  size_t bytes() const { return count * element(); }
};

}  // namespace commlib
