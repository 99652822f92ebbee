// K and V rows into a paged cache for check.cc: on the CPU (cpu.cc), and the launches on a GPU
// (launch.cc).
#pragma once

#include "binding/dlpack.h"
#include "kernels/store/job.h"

namespace commlib::kernels {

// Writes the rows whose slot is one of the cache's and not reserved; where slots repeat, the last
// row stays. Returns how many slots lie beyond the cache.
i64 store(const StoreJob& job, StoreFrom from, StoreAs as);

// Chooses the kernels and the grid.
void launch_store(StoreJob* job, StoreFrom from, StoreAs as, binding::Device device);

}  // namespace commlib::kernels
