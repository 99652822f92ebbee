// The shared segment: anonymous memory (no name, nothing to clean up) handed over through
// /proc/<pid>/fd.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "commlib/allocator.h"
#include "commlib/check.h"
#include "shm/layout.h"

namespace commlib::shm {

class Segment {
 public:
  // The creating rank makes the memory and keeps the descriptor open until `seal_off`, so that
  // peers can attach.
  static std::shared_ptr<Segment> create(const Layout& layout, uint64_t nonce);
  static std::shared_ptr<Segment> attach(const Layout& layout, uint64_t nonce, int pid, int fd);
  ~Segment();

  int fd() const { return fd_; }
  void close_descriptor();  // once every rank has attached; keeps the memory
  // Backs [offset, offset + bytes) with memory now, so that a full machine is an error here and
  // never SIGBUS later.
  void back(size_t offset, size_t bytes);

  const Layout& layout() const { return layout_; }
  Header* header() const { return reinterpret_cast<Header*>(base_); }
  RankControl* control(int rank) const { return at<RankControl>(layout_.section(rank)); }
  unsigned char* staging(int rank) const { return base_ + layout_.staging(rank); }
  Channel* channel(int from, int to) const { return at<Channel>(layout_.channel(from, to)); }
  unsigned char* cells(int from, int to) const {
    return base_ + layout_.channel(from, to) + round_up(sizeof(Channel), kPage);
  }
  unsigned char* arena(int rank) const { return base_ + layout_.arena(rank); }

 private:
  Segment(const Layout& layout, int fd) : layout_(layout), fd_(fd) {}
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  void map();

  Layout layout_;
  int fd_;
  unsigned char* base_ = nullptr;
};

// One rank's part for tensors; memory is put behind it as it is first needed.
class Arena {
 public:
  Arena(std::shared_ptr<Segment> segment, int rank);
  void* allocate(size_t bytes);
  void free(void* pointer);
  // The offset of [pointer, pointer + bytes) in this rank's arena, or -1 when it lies elsewhere.
  int64_t offset_of(const void* pointer, size_t bytes) const {
    const auto offset = static_cast<const unsigned char*>(pointer) - start_;
    const size_t room = allocator_.bytes();
    const bool inside = offset >= 0 && bytes <= room && static_cast<size_t>(offset) <= room - bytes;
    return inside ? offset : -1;
  }

 private:
  void back_to(size_t end);

  std::shared_ptr<Segment> segment_;
  unsigned char* start_;
  size_t first_byte_;  // of the arena in the segment
  Allocator allocator_;
  std::mutex mutex_;
  size_t backed_ = 0;  // bytes from the start that have memory behind them
};

}  // namespace commlib::shm
