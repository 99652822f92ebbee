// What calls of the kernels left out because its number names no place: one counter for each
// kernel and device.
#pragma once

#include <atomic>
#include <cstdint>

#include "binding/device_code.h"

namespace commlib::binding {

// The counter of calls on the CPU; those of GPUs are in device_code.h.
std::atomic<int64_t>& cpu_counter(Counter counter);

}  // namespace commlib::binding
