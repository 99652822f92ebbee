// The table of native algorithms. An algorithm is one file csrc/collectives/<collective>/<name>.cc
// that ends with COMMLIB_SHM_ALGORITHM; commlib/collectives/<collective>.py lists the same name.
#pragma once

#include "shm/layout.h"

namespace commlib::shm {

class Group;

// A symmetric algorithm must work when some ranks' tensors are plain and those ranks run a plain
// algorithm: either it only changes where its data is read (Source::offered), or it asks first
// (Source::hoping, Group::run_plain).
struct Algorithm {
  Op op;
  const char* name;
  bool symmetric;  // needs every tensor in the arena
  void (*run)(Group&, const Call&);
};

int register_algorithm(const Algorithm& algorithm);
const Algorithm& algorithm(int id);
int find_algorithm(Op op, const char* name);  // -1: none
int num_algorithms();

#define COMMLIB_SHM_ALGORITHM(op, name, symmetric, function)   \
  [[maybe_unused]] static const int registered_##op##_##name = \
      ::commlib::shm::register_algorithm({::commlib::Op::op, #name, symmetric, function})

}  // namespace commlib::shm
