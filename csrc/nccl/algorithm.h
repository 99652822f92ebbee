// The native halves of algorithms that are calls of NCCL's. An algorithm is one file
// csrc/collectives/<collective>/<name>.cc that ends with COMMLIB_NCCL_ALGORITHM;
// commlib/collectives/<collective>.py has its row, which says everything else about it.
#pragma once

#include "cuda/api.h"
#include "plan/native.h"

namespace commlib::nccl {

class Group;

using Algorithm = Native<void (*)(Group&, const Call&, CUstream)>;

#define COMMLIB_NCCL_ALGORITHM(op, name, function) \
  COMMLIB_NATIVE(::commlib::nccl::Algorithm, op, name, function)

}  // namespace commlib::nccl
