// What a rank does during a call, as `commlib bench --phases` tells it; for host and device.
#pragma once

#include "commlib/types.h"

namespace commlib {

// clang-format off
#define COMMLIB_PHASES(X)                                                          \
  X(python)  /* outside of native code */                                          \
  X(native)  /* arguments are checked; the way back */                             \
  X(plan)    /* the algorithm is looked up */                                      \
  X(launch)  /* on GPUs: a kernel, or NCCL's call, is put on the stream */         \
  X(start)   /* on GPUs: a kernel waits for what is ahead of it */                 \
  X(publish) /* what this rank has is brought where the peers read it */           \
  X(wait)    /* for the peers */                                                   \
  X(reduce)                                                                        \
  X(copy)    /* what came, or the result, is brought to its place */               \
  X(over)    /* on GPUs: a block is done */
// clang-format on

#define COMMLIB_PHASE_CODE(phase) phase,
enum class Phase : u64 { COMMLIB_PHASES(COMMLIB_PHASE_CODE) count };

}  // namespace commlib
