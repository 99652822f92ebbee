// float64, float32 and complex numbers (sum and avg only: a complex number is two floats).
#include "kernels.h"

namespace {

template <class C>
void reduce_complex_sum(void* out, const void* const* sources, int n, size_t count) {
  reduce_all<C, Sum, Keep>(out, sources, n, 2 * count);
}

template <class C>
void reduce_complex_avg(void* out, const void* const* sources, int n, size_t count) {
  reduce_all<C, Sum, Divide>(out, sources, n, 2 * count);
}

template <class C>
void fill_complex(ReduceTable* table, DType dtype) {
  auto& fn = table->fn[static_cast<int>(dtype)];
  fn[static_cast<int>(RedOp::sum)] = reduce_complex_sum<C>;
  fn[static_cast<int>(RedOp::avg)] = reduce_complex_avg<C>;
}

}  // namespace

void COMMLIB_LEVEL(fill_floats)(ReduceTable* table) {
  fill_arithmetic<Plain<double>>(table, DType::f64);
  fill_arithmetic<Plain<float>>(table, DType::f32);
  fill_complex<Plain<float>>(table, DType::c64);
  fill_complex<Plain<double>>(table, DType::c128);
}
