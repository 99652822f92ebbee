// A block cut into pieces that pass through the staging memory, its halves taking turns.
#pragma once

#include <algorithm>

#include "nccl/group.h"

namespace commlib::nccl {

class Pieces {
 public:
  // `parts`: pieces that lie in a half at once.
  Pieces(const Group& group, size_t block_bytes, int parts)
      : group_(group),
        block_bytes_(block_bytes),
        stride_(kHalf / static_cast<size_t>(parts) / kAlign * kAlign) {}
  size_t count() const { return (block_bytes_ + stride_ - 1) / stride_; }
  size_t at(size_t i) const { return i * stride_; }
  size_t bytes(size_t i) const { return std::min(stride_, block_bytes_ - at(i)); }
  size_t stride() const { return stride_; }
  unsigned char* half(size_t i) const { return group_.staged() + i % 2 * kHalf; }

  static void copy(unsigned char* to, const unsigned char* from, size_t bytes, CUstream stream) {
    check(cuda().cuMemcpyDtoDAsync(device_pointer(to), device_pointer(from), bytes, stream),
          "cuMemcpyDtoDAsync");
  }

 private:
  static constexpr size_t kHalf = Group::kStagedBytes / 2;
  static constexpr size_t kAlign = 256;  // whole elements of every type

  const Group& group_;
  size_t block_bytes_;
  size_t stride_;
};

}  // namespace commlib::nccl
