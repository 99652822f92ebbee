// The kernels of csrc/kernels/*.cu, launched on the caller's stream: csrc/binding/*_launch.cc.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include "kernels/index_job.h"
#include "kernels/metadata_job.h"
#include "kernels/store_job.h"

namespace commlib::binding {

// These fill in what only the device knows (its counter) and choose the grid.
void launch_index(kernels::IndexJob* job, DLDevice device);
// The position of the first id outside, or -1; waits for the GPU.
int64_t first_outside_on(kernels::IndexJob* job, DLDevice device);
void launch_store(kernels::StoreJob* job, kernels::StoreFrom from, kernels::StoreAs as,
                  DLDevice device);
void launch_metadata(kernels::MetadataJob* job, DLDevice device);

}  // namespace commlib::binding
