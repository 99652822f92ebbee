// First-fit allocator of an arena: it deals in offsets, so it serves memory that the host cannot
// touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

#include "commlib/check.h"

namespace commlib {

// Blocks may be freed in any order and from any thread.
class Allocator {
 public:
  static constexpr size_t kAlign = 256;  // of blocks: what cudaMalloc gives, and four cache lines

  static constexpr int64_t kMax = int64_t{1} << 47;  // of an arena: what a process can address

  // The bytes of an arena as they are given from outside: sums of such sizes do not overflow.
  static size_t size(int64_t bytes) {
    if (bytes >= 0 && bytes <= kMax) return static_cast<size_t>(bytes);
    fail("ValueError", "max_bytes ", bytes, " is out of range; it must be from 0 to ", kMax);
  }
  explicit Allocator(size_t bytes) : bytes_(bytes) {
    if (bytes > 0) free_[0] = bytes;
  }
  // What a request takes from the arena; a tensor of 0 bytes has an address of its own too.
  static size_t rounded(size_t bytes) {
    return ((bytes > 0 ? bytes : 1) + kAlign - 1) / kAlign * kAlign;
  }
  size_t bytes() const { return bytes_; }
  bool in_use() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !used_.empty();
  }

  size_t allocate(size_t bytes) {
    const size_t wanted = bytes > bytes_ ? bytes : rounded(bytes);  // too much stays too much
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t largest = 0;
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const auto [offset, room] = *it;
      largest = room > largest ? room : largest;
      if (room < wanted) continue;
      free_.erase(it);
      if (room > wanted) free_[offset + wanted] = room - wanted;
      used_[offset] = wanted;
      return offset;
    }
    fail("CommError", "empty() needs ", wanted, " bytes, the largest free block of this rank's ",
         bytes_, "-byte arena has ", largest,
         "; free tensors or raise max_bytes= (COMMLIB_MAX_BYTES)");
  }

  // An offset that is not in use is ignored.
  void free(size_t offset) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = used_.find(offset);
    if (it == used_.end()) return;
    size_t bytes = it->second;
    used_.erase(it);
    auto after = free_.lower_bound(offset);
    if (after != free_.end() && offset + bytes == after->first) {
      bytes += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    free_[offset] = bytes;
  }

 private:
  const size_t bytes_;
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset → bytes
  std::map<size_t, size_t> used_;
};

}  // namespace commlib
