// Metadata of draft-extend attention for check.cc: on the CPU (cpu.cc), and the launch on a GPU
// (launch.cc).
#pragma once

#include "binding/dlpack.h"
#include "kernels/metadata/job.h"

namespace commlib::kernels {

// New tokens of all requests; a number above the largest int32 stands for itself and all above.
i64 count_tokens(const MetadataJob& job);

// The first request whose length is above the largest int32, or `requests`.
i64 first_too_long(const MetadataJob& job);

// Fills the outputs; the tokens fit the capacity, and they and all lengths fit int32.
void fill_metadata(const MetadataJob& job);

// Chooses the grid.
void launch_metadata(MetadataJob* job, binding::Device device);

}  // namespace commlib::kernels
