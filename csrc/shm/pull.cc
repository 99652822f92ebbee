#include "shm/pull.h"

#include <sys/uio.h>
#include <unistd.h>

namespace commlib::shm {

void publish_process(RankControl* control) {
  control->cpu.store(-1);
  control->self.store(reinterpret_cast<uint64_t>(&control->self));
  control->pid.store(getpid());
}

bool can_read(const RankControl* peer) {
  const uint64_t self = peer->self.load();
  uint64_t value = 0;
  const auto* there = reinterpret_cast<const void*>(self);
  return read_memory(peer->pid.load(), there, &value, sizeof(value)) && value == self;
}

bool can_be_pulled(const Segment& segment, int rank, const void* data) {
  for (int r = 0; r < segment.layout().world; ++r) {
    if (segment.control(r)->reads_peers.load(std::memory_order_relaxed) == 0) return false;
  }
  unsigned char first;
  return read_memory(segment.control(rank)->pid.load(), data, &first, 1);
}

bool read_memory(int pid, const void* from, void* to, size_t bytes) {
  auto* target = static_cast<unsigned char*>(to);
  auto* source = static_cast<unsigned char*>(const_cast<void*>(from));
  for (size_t done = 0; done < bytes;) {
    const iovec local = {target + done, bytes - done}, remote = {source + done, bytes - done};
    const ssize_t moved = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (moved <= 0) return false;
    done += static_cast<size_t>(moved);
  }
  return true;
}

}  // namespace commlib::shm
