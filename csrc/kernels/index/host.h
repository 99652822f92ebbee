// Row gather for check.cc: the loop on the CPU (cpu.cc), which gets everything in bytes, and the
// launch on a GPU (launch.cc).
#pragma once

#include <cstddef>
#include <cstdint>

#include "binding/dlpack.h"
#include "kernels/index/job.h"

namespace commlib::kernels {

// The rows that ids `start` to `start + length` stand for; start + length is at most 2^63 - 1.
struct Table {
  const unsigned char* data;
  int64_t stride_bytes;  // from row to row, 0 or more
  size_t row_bytes;
  int64_t start;
  int64_t length;

  // The wrapped difference makes one compare of two; with the bound above no id, however far
  // below `start`, wraps back into the range.
  bool find(int64_t id, int64_t* row) const {
    const uint64_t at = static_cast<uint64_t>(id) - static_cast<uint64_t>(start);
    *row = static_cast<int64_t>(at);
    return at < static_cast<uint64_t>(length);
  }
};

// A tensor of ids, of any shape and strides.
struct Ids {
  const void* data;
  bool wide;  // int64, else int32
  bool contiguous;
  int ndim;
  const int64_t* shape;
  const int64_t* strides;  // in elements
  int64_t count;
};

// The flat position of the first id outside the table, or ids.count; *id is that id.
int64_t first_outside(const Table& table, const Ids& ids, int64_t* id);

// Fills ids.count rows of `out`, with zeros where the id is outside; returns how many those are.
int64_t gather(const Table& table, const Ids& ids, unsigned char* out);

// Chooses the grid.
void launch_index(IndexJob* job, binding::Device device);
// The position of the first id outside, or -1; waits for the GPU.
int64_t first_outside_on(IndexJob* job, binding::Device device);

}  // namespace commlib::kernels
