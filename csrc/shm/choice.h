// What a plan says of one range of sizes on shared memory.
#pragma once

#include "commlib/plan_table.h"

namespace commlib::shm {

struct Choice {
  uint64_t max_bytes;
  int algorithm;
  size_t chunk_bytes;
  bool hot;
};

using PlanTable = commlib::PlanTable<Choice>;

}  // namespace commlib::shm
