// All-reduce with an epilogue on each row of the sum: what a kernel is told besides its Job.
//
// Kernels take (Job, Rows). Of the Job they read `in`, row 0 of this rank's x, and `bytes`, of all
// rows of x without what lies between them; `out` and `redop` are not read. What an epilogue reads
// and writes are the fields, by their index; it says itself what each means (device/row.cuh).
#pragma once

#include "commlib/job.h"

namespace commlib {

constexpr int kMaxFields = 8;
constexpr int kMaxNumbers = 8;
constexpr unsigned kRowThreads = 512;                    // that hold a row
constexpr unsigned kRowTileThreads = kRowThreads + 128;  // of a block that moves tiles: and helpers
constexpr u32 kMaxRowBytes = 1 << 16;         // of x: 8 pairs of words for each of kRowThreads
constexpr u32 kMaxTileRowBytes = kSlotBytes;  // where rows come in tiles (device/row_tiles.cuh)
// Of a grid of packets whose next kernel starts early: few blocks, or small ones.
constexpr unsigned kEarlyRowBlocks = 16, kSmallRowBlock = 128;
COMMLIB_BOTH constexpr bool lets_next_start(unsigned blocks, unsigned threads) {
  return blocks <= kEarlyRowBlocks || threads <= kSmallRowBlock;
}

// A tensor that an epilogue reads or writes.
struct Field {
  u8* data;          // of row 0; null: not given
  i64 stride_bytes;  // from a row to the next; 0: the same for every row
};

struct Rows {
  u64 rows;
  u32 width;  // elements of a row: a multiple of 8
  // Whether each thread finds its 16 bytes of x at an aligned address, and what goes with them in
  // fields of elements; not so, a kernel looks at each.
  u32 aligned;
  i64 in_stride_bytes;
  Field fields[kMaxFields];
  float numbers[kMaxNumbers];
};

// Pairs of words that each thread has of a row: the kernel's template parameter.
COMMLIB_BOTH constexpr int row_pairs(u32 row_bytes) {
  int pairs = 1;
  while (pairs * kRowThreads * 16 < row_bytes) pairs *= 2;
  return pairs;
}

// Job::tile_bytes of kernels that move tiles: as many whole rows as fit what the plan wants, or
// one.
COMMLIB_BOTH constexpr u32 row_tile_bytes(u32 row_bytes, u32 wanted_bytes) {
  return wanted_bytes > row_bytes ? wanted_bytes / row_bytes * row_bytes : row_bytes;
}

}  // namespace commlib
