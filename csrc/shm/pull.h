// Reading a peer's own memory through the kernel: one copy where staging takes two. Linux allows it
// to whom it would allow to trace the peer: processes of one user, unless the machine forbids it.
#pragma once

#include <cstddef>

#include "shm/layout.h"

namespace commlib::shm {

// Says which process a rank is, so that its peers can read its memory.
void publish_process(RankControl* control);
// Whether this process may read the memory of that rank; what it reads there says that it is its.
bool can_read(const RankControl* peer);
// Whether the kernel reads such memory of a process: that of a device it does not.
bool is_readable(int pid, const void* data);
// Copies `bytes` at `from` in a process; false where the kernel cannot.
bool read_memory(int pid, const void* from, void* to, size_t bytes);

}  // namespace commlib::shm
