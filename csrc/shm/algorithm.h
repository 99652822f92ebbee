// The native halves of algorithms. An algorithm is one file
// csrc/collectives/<collective>/<name>.cc that ends with COMMLIB_SHM_ALGORITHM;
// commlib/collectives/<collective>.py has its row, which says everything else about it.
#pragma once

#include <deque>
#include <string>

#include "commlib/call.h"

namespace commlib::shm {

class Group;

// A symmetric algorithm must work when some ranks' tensors are plain and those ranks run a plain
// algorithm: either it only changes where its data is read (Source::offered), or it asks first
// (Source::hoping, Group::run_plain).
struct Algorithm {
  Op op;
  const char* name;
  void (*run)(Group&, const Call&);
};

int register_algorithm(const Algorithm& algorithm);
const std::deque<Algorithm>& algorithms();
const Algorithm* find_algorithm(Op op, const std::string& name);  // null: none

#define COMMLIB_SHM_ALGORITHM(op, name, function)              \
  [[maybe_unused]] static const int registered_##op##_##name = \
      ::commlib::shm::register_algorithm({::commlib::Op::op, #name, function})

}  // namespace commlib::shm
