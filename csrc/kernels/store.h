// K and V rows into a paged cache, on the CPU.
#pragma once

#include "kernels/store_job.h"

namespace commlib::kernels {

// Writes the rows whose slot is one of the cache's and not reserved; where slots repeat, the last
// row stays. Returns how many slots lie beyond the cache.
i64 store(const StoreJob& job, StoreFrom from, StoreAs as);

}  // namespace commlib::kernels
