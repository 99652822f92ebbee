// Reduction of several sources into one output, element by element, in the order of the sources.
//
// The result depends on the order of the sources alone: 16- and 8-bit floats accumulate in fp32 and
// are rounded once (nearest even, NaN kept), integers wrap (in an average only those of 32 and 64
// bits), and every x86-64 level gives the same bits.
#pragma once

#include <cstddef>

#include "commlib/dtype.h"

namespace commlib {

// `out` may be one of the sources (the same address), never a shifted overlap.
using ReduceFn = void (*)(void* out, const void* const* sources, int num_sources, size_t count);

// Writes 8-bit floats: `in` times `factor` in fp32, saturated at the largest number of the format,
// rounded to nearest even; NaN stays NaN.
using NarrowFn = void (*)(void* out, const void* in, size_t count, float factor);

struct NormCall;
// What the norm of a row h subtracts from it, and multiplies the difference by.
struct RowNorm {
  float mean;
  float factor;
};
// The first half of the norm of a row: adds up the sources and the residual, writes them to `h` and
// returns what the second half needs. The bits depend on the row alone.
using AddFn = RowNorm (*)(const NormCall& call, size_t row, const void* const* sources,
                          int num_sources, unsigned char* h);
// The second half: from h to the row's fields, h itself among them. `wide` has room for a row of
// floats.
using NormFn = void (*)(const NormCall& call, size_t row, const unsigned char* h, RowNorm norm,
                        float* wide);

struct ReduceTable {
  const char* isa;
  ReduceFn fn[kDTypes][kRedOps];  // null: this reduction does not exist for this element type
  NarrowFn to_e4m3[kDTypes];      // f32, f16, bf16
  NarrowFn to_e5m2[kDTypes];
  AddFn add[kDTypes];  // f32, f16, bf16, as the next
  NormFn norm[kDTypes];
};

// The kernels for the best x86-64 level of this CPU, or for the one named ("v2", "v3", "v4").
// Returns null if the CPU does not have the level.
const ReduceTable* reduce_table(const char* isa);

}  // namespace commlib
