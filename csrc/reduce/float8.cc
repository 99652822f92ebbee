// Reductions of float8_e4m3fn and float8_e5m2.
#include "float8.h"

void COMMLIB_LEVEL(fill_float8)(ReduceTable* table) {
  fill_arithmetic<E4M3>(table, DType::f8e4m3);
  fill_arithmetic<E5M2>(table, DType::f8e5m2);
}
