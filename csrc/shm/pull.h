// Reading a peer's own memory through the kernel: one copy where staging takes two. Linux allows it
// to whom it would allow to trace the peer: processes of one user, unless the machine forbids it.
#pragma once

#include <cstddef>

#include "shm/segment.h"

namespace commlib::shm {

// Says which process a rank is, so that its peers can read its memory.
void publish_process(RankControl* control);
// Whether this process may read the memory of that rank; what it reads there says that it is its.
bool can_read(const RankControl* peer);
// Whether all ranks may read such memory of this rank's: the kernel does not read a device's.
bool can_be_pulled(const Segment& segment, int rank, const void* data);
// Copies `bytes` at `from` in a process; false where the kernel cannot.
bool read_memory(int pid, const void* from, void* to, size_t bytes);

}  // namespace commlib::shm
