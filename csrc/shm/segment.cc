#include "shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace commlib::shm {
namespace {

void check_limit(const char* what) {
  if (errno == EMFILE) fail("CommError", what, ": ", std::strerror(errno), "; raise `ulimit -n`");
}

int make_memory(size_t bytes) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = memfd_create("commlib", flags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("commlib", flags);  // kernels before 6.3
  if (fd < 0) {
    check_limit("memfd_create");
    fail("Unsupported", "memfd_create failed (", std::strerror(errno),
         "); the shm backend needs Linux 3.17");
  }
  if (fchmod(fd, 0600) != 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    ::close(fd);
    fail("CommError", "cannot make a shared segment of ", bytes, " bytes: ", std::strerror(error),
         "; lower max_bytes= or COMMLIB_MAX_BYTES (or raise `ulimit -f`)");
  }
  fcntl(fd, F_ADD_SEALS,
        F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);  // nobody can pull memory from under us
  return fd;
}

}  // namespace

std::shared_ptr<Segment> Segment::create(const Layout& layout, uint64_t nonce) {
  std::shared_ptr<Segment> segment(new Segment(layout, make_memory(layout.total_bytes())));
  segment->map();
  segment->back(0, layout.header_bytes());
  Header* header = segment->header();
  header->nonce = nonce;
  header->world = layout.world;
  header->arena_bytes = layout.arena_bytes;
  header->magic = kMagic;
  return segment;
}

std::shared_ptr<Segment> Segment::attach(const Layout& layout, uint64_t nonce, int pid, int fd) {
  const std::string path = text("/proc/", pid, "/fd/", fd);
  const int mine = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (mine < 0) {
    check_limit("open");
    fail("CommError", "cannot open the segment of process ", pid, ": ", std::strerror(errno),
         "; all ranks must run as one user in one PID namespace, or use backend='torch'");
  }
  std::shared_ptr<Segment> segment(new Segment(layout, mine));
  struct stat info;
  if (fstat(mine, &info) != 0 || info.st_uid != geteuid() ||
      static_cast<size_t>(info.st_size) != layout.total_bytes()) {
    fail("CommError", "the segment of process ", pid, " is not ours: ", info.st_size,
         " bytes of user ", info.st_uid, ", expected ", layout.total_bytes(), " bytes of user ",
         geteuid());
  }
  segment->map();
  const Header* header = segment->header();
  if (header->magic != kMagic || header->nonce != nonce || header->world != layout.world) {
    fail("CommError", "the segment of process ", pid,
         " belongs to another job; start the ranks again");
  }
  segment->close_descriptor();
  return segment;
}

void Segment::map() {
  void* address = mmap(nullptr, layout_.total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (address == MAP_FAILED) {
    fail("CommError", "cannot map ", layout_.total_bytes(), " bytes: ", std::strerror(errno),
         "; lower max_bytes= or COMMLIB_MAX_BYTES (or raise `ulimit -v`)");
  }
  base_ = static_cast<unsigned char*>(address);
}

void Segment::close_descriptor() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Segment::back(size_t offset, size_t bytes) {
  // MADV_POPULATE_WRITE reports a full machine as an error; older kernels fault page by page as
  // before.
  const size_t first = offset / kPage * kPage;
  const size_t end = round_up(offset + bytes, kPage);
#ifndef MADV_POPULATE_WRITE
  constexpr int MADV_POPULATE_WRITE = 23;
#endif
  if (madvise(base_ + first, end - first, MADV_POPULATE_WRITE) == 0 || errno == EINVAL) return;
  fail("CommError", "no memory for ", end - first, " shared bytes: ", std::strerror(errno),
       "; free memory, lower max_bytes=, or raise the container's limit");
}

Segment::~Segment() {
  if (base_) munmap(base_, layout_.total_bytes());
  close_descriptor();
}

Arena::Arena(std::shared_ptr<Segment> segment, int rank)
    : segment_(std::move(segment)),
      start_(segment_->arena(rank)),
      first_byte_(segment_->layout().arena(rank)),
      allocator_(segment_->layout().arena_bytes) {}

void* Arena::allocate(size_t bytes) {
  const size_t offset = allocator_.allocate(bytes);
  try {
    back_to(offset + Allocator::rounded(bytes));
  } catch (...) {
    allocator_.free(offset);
    throw;
  }
  return start_ + offset;
}

void Arena::back_to(size_t end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (end <= backed_) return;
  segment_->back(first_byte_ + backed_, end - backed_);
  backed_ = end;
}

void Arena::free(void* pointer) {
  allocator_.free(static_cast<size_t>(static_cast<unsigned char*>(pointer) - start_));
}

}  // namespace commlib::shm
