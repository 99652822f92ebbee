// The arguments of the loops of cpu.cc and the kernels of gpu.cu: a type for host and device.
#pragma once

#include "commlib/types.h"

namespace commlib::kernels {

// The rows of K, or of V. A row is `segments` runs of contiguous bytes: its heads, or one run where
// the heads lie behind each other both where they come from and where they go.
struct StoreSide {
  const u8* from;
  i64 from_row, from_segment;  // bytes from token to token, from run to run
  u8* to;
  i64 to_page, to_slot, to_segment;  // bytes
  i64 segments;
  i64 segment_elements;
  const float* scales;  // null, or one for all runs (scales_step 0), or one for each (1)
  i32 scales_step;
  float scale;  // where scales is null
};

constexpr int kMaxReserved = 4;
constexpr int kMaxScales = 1024;  // of K and V together, on GPUs

struct StoreJob {
  StoreSide sides[2];  // K, V
  int num_sides;
  const void* slots;
  i64 slots_step;  // elements from slot to slot
  bool wide;       // slots are int64, else int32
  i64 tokens;
  i64 num_slots;  // pages * page_size
  i64 page_size;
  int page_shift;  // log2 of page_size, or -1
  i64 reserved[kMaxReserved];
  int num_reserved;
  u32 element_bytes;  // of the sources
  u64* counter;       // of slots beyond num_slots
  bool unique;        // the caller's word that no two tokens have one slot
  u32* claims;        // on GPUs, for many tokens: room for one number for each slot, or null
};

// The same where both rows are one run and pages lie behind each other, for the GPU: a kernel reads
// its parameters line by line, and what it needs first is in the first two.
struct DenseStoreJob {
  const u8* from[2];
  u8* to[2];
  i64 from_row[2];
  i64 to_slot[2];

  const void* slots;
  i64 slots_step;
  i64 tokens;
  i64 num_slots;
  u32 elements[2];
  u32 element_bytes;
  bool wide, unique;
  int num_reserved;
  u32* claims;
  u64* counter;

  const float* scales[2];
  float scale[2];
  i64 reserved[kMaxReserved];
};

// What becomes of an element on its way.
enum class StoreAs : int { copy, e4m3, e5m2 };
enum class StoreFrom : int { bytes, f32, f16, bf16 };

}  // namespace commlib::kernels
