// The native halves of algorithms. An algorithm is one file
// csrc/collectives/<collective>/<name>.cc, or of a plugin, that ends with COMMLIB_SHM_ALGORITHM;
// commlib/collectives/<collective>.py has its row, which says everything else about it.
#pragma once

#include "commlib/api.h"
#include "plan/native.h"

namespace commlib::shm {

class Group;

// A symmetric algorithm must work when some ranks' tensors are plain and those ranks run a plain
// algorithm: either it only changes where its data is read (Source::offered), or it asks first
// (Source::symmetric_if_all, Group::run_plain).
using Algorithm = Native<void (*)(Group&, const Call&)>;

// A plugin has no list of its own: it adds to the library's.
COMMLIB_API const Algorithm& add(const Algorithm& algorithm);

#define COMMLIB_SHM_ALGORITHM(op, name, function)                \
  [[maybe_unused]] static const auto& registered_##op##_##name = \
      ::commlib::shm::add({::commlib::Op::op, #name, function})

}  // namespace commlib::shm
