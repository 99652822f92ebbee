// The arguments of the kernels of gpu.cu.
#pragma once

#include "commlib/types.h"

namespace commlib::kernels {

struct IndexJob {
  const u8* table;
  i64 stride_bytes;  // from row to row
  i64 row_bytes;
  const void* ids;  // contiguous
  bool wide;        // ids are int64, else int32
  i64 count;
  u8* out;
  i64 start;  // the rows are those of ids start to start + length
  u64 length;
  u64* counter;    // of ids outside; null where nobody counts
  u64* first_bad;  // for first_outside
};

}  // namespace commlib::kernels
