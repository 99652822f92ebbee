// The native halves of algorithms that are calls of NCCL's. An algorithm is one file
// csrc/collectives/<collective>/<name>.cc that ends with COMMLIB_NCCL_ALGORITHM;
// commlib/collectives/<collective>.py has its row, which says everything else about it.
#pragma once

#include <string>

#include "commlib/call.h"
#include "cuda/api.h"

namespace commlib::nccl {

class Group;

struct Algorithm {
  Op op;
  const char* name;
  void (*run)(Group&, const Call&, CUstream);
};

int register_algorithm(const Algorithm& algorithm);
const Algorithm* find_algorithm(Op op, const std::string& name);  // null: none

#define COMMLIB_NCCL_ALGORITHM(op, name, function)                  \
  [[maybe_unused]] static const int nccl_registered_##op##_##name = \
      ::commlib::nccl::register_algorithm({::commlib::Op::op, #name, function})

}  // namespace commlib::nccl
