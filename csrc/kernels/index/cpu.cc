// Row gather on the CPU: take a block of ids | find each row, or none | copy it, or zeros.
// A contiguous tensor of ids is one block and read in place; another is read in blocks of
// kBlockIds. One thread: ranks share the host's cores, and the caller's other threads need some.
#include <algorithm>
#include <cstring>

#include "kernels/index/host.h"

namespace commlib::kernels {
namespace {

constexpr int64_t kBlockIds = 256;  // 2 KiB on the stack

// The id at a flat position of a tensor with any strides.
template <class Id>
int64_t id_at(const Ids& ids, int64_t position) {
  int64_t offset = 0;
  for (int d = ids.ndim - 1; d >= 0; --d) {
    offset += position % ids.shape[d] * ids.strides[d];
    position /= ids.shape[d];
  }
  return static_cast<const Id*>(ids.data)[offset];
}

// Calls visit(block, first, count) until it returns false or all ids were shown.
template <class Id, class Visit>
void each_block_of(const Ids& ids, const Visit& visit) {
  if (ids.contiguous) {
    visit(static_cast<const Id*>(ids.data), int64_t{0}, ids.count);
    return;
  }
  int64_t block[kBlockIds];
  for (int64_t first = 0; first < ids.count; first += kBlockIds) {
    const int64_t count = std::min(kBlockIds, ids.count - first);
    for (int64_t i = 0; i < count; ++i) block[i] = id_at<Id>(ids, first + i);
    if (!visit(static_cast<const int64_t*>(block), first, count)) return;
  }
}

template <class Visit>
void each_block(const Ids& ids, const Visit& visit) {
  if (ids.wide) {
    each_block_of<int64_t>(ids, visit);
  } else {
    each_block_of<int32_t>(ids, visit);
  }
}

// Rows of a size known here are moved by a few instructions; kBytes 0 stands for a size that is
// not.
template <size_t kBytes, class Id>
int64_t gather_block(const Table& table, const Id* ids, int64_t count, unsigned char* out) {
  const size_t bytes = kBytes > 0 ? kBytes : table.row_bytes;
  int64_t outside = 0;
  for (int64_t i = 0; i < count; ++i, out += bytes) {
    int64_t row;
    if (table.find(ids[i], &row)) {
      std::memcpy(out, table.data + row * table.stride_bytes, bytes);
    } else {
      std::memset(out, 0, bytes);
      ++outside;
    }
  }
  return outside;
}

// An empty row has no memory to point to: only count.
template <class Id>
int64_t count_outside(const Table& table, const Id* ids, int64_t count) {
  int64_t outside = 0, row;
  for (int64_t i = 0; i < count; ++i) outside += !table.find(ids[i], &row);
  return outside;
}

template <class Id>
int64_t gather_sized(const Table& table, const Id* ids, int64_t count, unsigned char* out) {
  switch (table.row_bytes) {
    case 0:
      return count_outside(table, ids, count);
    case 1:
      return gather_block<1>(table, ids, count, out);
    case 2:
      return gather_block<2>(table, ids, count, out);
    case 4:
      return gather_block<4>(table, ids, count, out);
    case 8:
      return gather_block<8>(table, ids, count, out);
    case 16:
      return gather_block<16>(table, ids, count, out);
    case 32:
      return gather_block<32>(table, ids, count, out);
    case 64:
      return gather_block<64>(table, ids, count, out);
    case 128:
      return gather_block<128>(table, ids, count, out);
    default:
      return gather_block<0>(table, ids, count, out);
  }
}

}  // namespace

int64_t first_outside(const Table& table, const Ids& ids, int64_t* id) {
  int64_t missing = ids.count;
  each_block(ids, [&](const auto* block, int64_t first, int64_t count) {
    for (int64_t i = 0, row; i < count; ++i) {
      if (table.find(block[i], &row)) continue;
      *id = block[i];
      missing = first + i;
      return false;
    }
    return true;
  });
  return missing;
}

int64_t gather(const Table& table, const Ids& ids, unsigned char* out) {
  int64_t outside = 0;
  each_block(ids, [&](const auto* block, int64_t first, int64_t count) {
    outside += gather_sized(table, block, count, out + first * table.row_bytes);
    return true;
  });
  return outside;
}

}  // namespace commlib::kernels
