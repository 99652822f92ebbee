// Metadata of draft-extend attention, on the CPU.
#pragma once

#include "kernels/metadata_job.h"

namespace commlib::kernels {

// New tokens of all requests; a number above the largest int32 stands for itself and all above.
i64 count_tokens(const MetadataJob& job);

// The first request whose length is above the largest int32, or `requests`.
i64 first_too_long(const MetadataJob& job);

// Fills the outputs; the tokens fit the capacity, and they and all lengths fit int32.
void fill_metadata(const MetadataJob& job);

}  // namespace commlib::kernels
