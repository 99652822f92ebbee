// The native halves of algorithms. An algorithm is one file
// csrc/collectives/<collective>/<name>.cc that ends with COMMLIB_SHM_ALGORITHM;
// commlib/collectives/<collective>.py has its row, which says everything else about it.
#pragma once

#include "plan/native.h"

namespace commlib::shm {

class Group;

// A symmetric algorithm must work when some ranks' tensors are plain and those ranks run a plain
// algorithm: either it only changes where its data is read (Source::offered), or it asks first
// (Source::hoping, Group::run_plain).
using Algorithm = Native<void (*)(Group&, const Call&)>;

#define COMMLIB_SHM_ALGORITHM(op, name, function) \
  COMMLIB_NATIVE(::commlib::shm::Algorithm, op, name, function)

}  // namespace commlib::shm
