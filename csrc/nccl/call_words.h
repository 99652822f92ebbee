// A call in numbers: how a plan wants it launched, what its ranks compare, what errors tell of it.
#pragma once

#include "nccl/kernels.h"
#include "plan/row.h"

namespace commlib::nccl {

enum Param { kBlocks, kThreads, kGrainBytes, kTileBytes, kPacketBytes };
inline const ParamNames kParams = {"blocks", "threads", "grain_bytes", "tile_bytes",
                                   "packet_bytes"};

inline Shape shape_of(const Params& params) {
  return {params[kBlocks], params[kThreads], params[kGrainBytes], params[kTileBytes],
          params[kPacketBytes]};
}

// Whether ranks know their own sizes alone. All must choose one algorithm all the same: it is that
// of the plan for kAnyBytes.
inline bool differs_by_rank(Op op) { return op == Op::all_to_allv || op == Op::send_recv; }
constexpr size_t kAnyBytes = 1 << 20;

// What ranks must agree on, in the bits that travel with every flag.
struct Signature {
  uint64_t hash = 1469598103934665603u;  // FNV-1a

  template <class... Values>
  explicit Signature(Values... values) {
    (add(static_cast<uint64_t>(values)), ...);
  }
  void add(uint64_t value) { hash = (hash ^ value) * 1099511628211u; }
  u32 bits() const {
    return static_cast<u32>(hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48) &
           ((1u << kSignatureBits) - 1);
  }
};

// Job::what: the call as an error tells it.
constexpr uint64_t kCall = 1ull << 63, kInner = 1ull << 62;
inline uint64_t pack(const Call& call, int algorithm, bool inner) {
  return kCall | (inner ? kInner : 0) | static_cast<uint64_t>(algorithm) << 32 |
         static_cast<uint64_t>(call.root) << 24 | static_cast<uint64_t>(call.redop) << 16 |
         static_cast<uint64_t>(call.dtype) << 8 | static_cast<uint64_t>(call.op);
}

}  // namespace commlib::nccl
