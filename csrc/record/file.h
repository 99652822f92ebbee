// The memfd of a process: made with its first communicator, found by its name in /proc/PID/fd, gone
// with the process.
#pragma once

#include <string>

#include "record/layout.h"

namespace commlib::record {

constexpr const char* kFileName = "commlib.record";

// The slot of a new communicator; null where none is left, or where there is no such memory.
Slot* take_slot();
// The file of this process, null before its first slot.
Header* header();
// The types of layout.h and the names of codes, as JSON.
std::string description();

}  // namespace commlib::record
