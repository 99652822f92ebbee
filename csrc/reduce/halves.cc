// Reductions of float16 and bfloat16.
#include "halves.h"

void COMMLIB_LEVEL(fill_halves)(ReduceTable* table) {
  fill_arithmetic<BFloat16>(table, DType::bf16);
  fill_arithmetic<Float16>(table, DType::f16);
}
