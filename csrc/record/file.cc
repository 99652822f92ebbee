#include "record/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "record/record.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace commlib::record {
namespace {

// Never unmapped: a thread may still be inside a call when the process ends.
std::mutex mutex;
unsigned char* file = nullptr;
int file_fd = -1;
ino_t file_inode = 0;

ino_t inode_of(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

void begin(Header* made) {
  const std::string types = description();
  made->version = kVersion;
  made->pid = getpid();
  made->parent = getppid();
  made->opened_ns = now_ns();
  made->used = 1;
  if (types.size() > sizeof(made->description)) return;  // magic stays empty: no reader takes it
  std::memcpy(made->description, types.data(), types.size());
  made->description_bytes = static_cast<uint32_t>(types.size());
  std::memcpy(made->magic, "commlib", sizeof(made->magic));
}

// Sealed, so that no reader can pull the memory from under us.
unsigned char* make_file() {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = memfd_create(kFileName, flags | MFD_NOEXEC_SEAL);
  if (fd < 0) fd = memfd_create(kFileName, flags);  // kernels before 6.3
  if (fd < 0) return nullptr;
  const bool ready = fchmod(fd, 0600) == 0 && ftruncate(fd, kFileBytes) == 0 &&
                     fallocate(fd, 0, 0, pages(sizeof(Header))) == 0;
  void* const at =
      ready ? mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (at == MAP_FAILED) {
    ::close(fd);
    return nullptr;
  }
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  file_fd = fd;
  file_inode = inode_of(fd);
  begin(static_cast<Header*>(at));
  return static_cast<unsigned char*>(at);
}

Slot* slot_at(int number) {
  return reinterpret_cast<Slot*>(file + pages(sizeof(Header)) + number * kSlotBytes);
}

// The one that was closed and opened first, once there are so many; until then, one never taken:
// another thread may still be filling one that is not in use yet.
int vacant() {
  int oldest = -1, unused = -1, closed = 0;
  for (int i = 0; i < kSlots; ++i) {
    const uint32_t state = slot_at(i)->state.load();
    if (slot_at(i)->opened_ns == 0 && unused < 0) unused = i;
    if (state != 2) continue;
    ++closed;
    if (oldest < 0 || slot_at(i)->opened_ns < slot_at(oldest)->opened_ns) oldest = i;
  }
  return unused < 0 || closed >= kClosed ? oldest : unused;
}

}  // namespace

Header* header() { return reinterpret_cast<Header*>(file); }

Slot* take_slot() {
  const std::lock_guard<std::mutex> lock(mutex);
  // A forked child has its parent's, and a program may have closed the descriptor, which then is
  // another file's: it makes a new one, and the old one stays mapped here.
  const bool is_open = file && inode_of(file_fd) == file_inode;
  if (file && !(is_open && header()->pid == getpid())) {
    if (is_open) ::close(file_fd);
    file = nullptr;
  }
  if (!file) file = make_file();
  if (!file) return nullptr;
  const int number = vacant();
  const off_t start = static_cast<off_t>(pages(sizeof(Header)) + number * kSlotBytes);
  // Memory that is missing shows now, and never by a signal.
  if (number < 0 || fallocate(file_fd, 0, start, kSlotBytes) != 0) return nullptr;
  Slot* const slot = slot_at(number);
  slot->state.store(0);
  std::memset(reinterpret_cast<unsigned char*>(slot) + sizeof(slot->state), 0,
              sizeof(Slot) - sizeof(slot->state));
  slot->opened_ns = now_ns();
  return slot;
}

}  // namespace commlib::record
