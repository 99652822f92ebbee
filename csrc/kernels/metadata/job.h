// The arguments of the loop of cpu.cc and the kernel of gpu.cu: a type for host and device.
#pragma once

#include "commlib/types.h"

namespace commlib::kernels {

// Lengths of the requests, int32 or int64, any distance apart.
struct Lengths {
  const void* data;
  i64 step;  // in elements
  bool wide;

  COMMLIB_BOTH i64 at(i64 i) const {
    return wide ? static_cast<const i64*>(data)[i * step]
                : static_cast<i64>(static_cast<const i32*>(data)[i * step]);
  }
};

struct MetadataJob {
  Lengths extend;  // new tokens of each request; data is null where all have `window`
  Lengths seq;     // tokens of each request, the new ones included
  i64 window;
  i64 requests;
  i64 topk;
  i64 capacity;  // of the outputs of one element per token
  // Outputs; null where nobody wants them.
  i32* expanded;
  i32* clipped;
  i32* positions;
  i32* request_index;
  i32* cu_seqlens;  // requests + 1
  i32* total;       // one: also what did not fit
  bool pads;        // the rest of the capacity gets `pad`
  i32 pad;
  u64* counter;  // of tokens beyond the capacity
};

}  // namespace commlib::kernels
