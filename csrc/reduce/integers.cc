// Integers and bool. Sums and products wrap; avg divides the sum and truncates. For avg, integers
// of 8 and 16 bits are added up in 32, which the sums of all ranks fit.
#include "kernels.h"

namespace {

// Sums and products of signed numbers wrap like those of unsigned ones, without undefined
// behaviour.
template <class Signed, class Unsigned, class Op>
struct Wrapping {
  static Signed of(Signed a, Signed b) {
    return static_cast<Signed>(
        Op::template of<Unsigned>(static_cast<Unsigned>(a), static_cast<Unsigned>(b)));
  }
};

// Small unsigned types promote to int, whose product could overflow: 65535 * 65535.
struct UnsignedSum {
  template <class U>
  static U of(U a, U b) {
    return static_cast<U>(a + b);
  }
};
struct UnsignedProd {
  template <class U>
  static U of(U a, U b) {
    return static_cast<U>(uint64_t(a) * uint64_t(b));
  }
};

template <class T, class U, class A = T, class UnsignedA = U>
void fill_integer(ReduceTable* table, DType dtype) {
  auto& fn = table->fn[static_cast<int>(dtype)];
  using C = Plain<T>;
  fn[static_cast<int>(RedOp::sum)] = reduce_all<C, Wrapping<T, U, UnsignedSum>, Keep>;
  fn[static_cast<int>(RedOp::prod)] = reduce_all<C, Wrapping<T, U, UnsignedProd>, Keep>;
  fn[static_cast<int>(RedOp::min)] = reduce_all<C, Min, Keep>;
  fn[static_cast<int>(RedOp::max)] = reduce_all<C, Max, Keep>;
  fn[static_cast<int>(RedOp::avg)] =
      reduce_all<Plain<T, A>, Wrapping<A, UnsignedA, UnsignedSum>, Divide>;
  fn[static_cast<int>(RedOp::band)] = reduce_all<C, Band, Keep>;
  fn[static_cast<int>(RedOp::bor)] = reduce_all<C, Bor, Keep>;
  fn[static_cast<int>(RedOp::bxor)] = reduce_all<C, Bxor, Keep>;
}

// bool as a byte of 0 or 1: sum and max are "any", prod and min are "all".
void fill_bool(ReduceTable* table) {
  auto& fn = table->fn[static_cast<int>(DType::boolean)];
  using C = Plain<uint8_t>;
  fn[static_cast<int>(RedOp::sum)] = fn[static_cast<int>(RedOp::max)] = reduce_all<C, Bor, Keep>;
  fn[static_cast<int>(RedOp::prod)] = fn[static_cast<int>(RedOp::min)] = reduce_all<C, Band, Keep>;
  fn[static_cast<int>(RedOp::band)] = reduce_all<C, Band, Keep>;
  fn[static_cast<int>(RedOp::bor)] = reduce_all<C, Bor, Keep>;
  fn[static_cast<int>(RedOp::bxor)] = reduce_all<C, Bxor, Keep>;
}

}  // namespace

void COMMLIB_LEVEL(fill_integers)(ReduceTable* table) {
  fill_integer<int8_t, uint8_t, int32_t, uint32_t>(table, DType::i8);
  fill_integer<uint8_t, uint8_t, int32_t, uint32_t>(table, DType::u8);
  fill_integer<int16_t, uint16_t, int32_t, uint32_t>(table, DType::i16);
  fill_integer<uint16_t, uint16_t, int32_t, uint32_t>(table, DType::u16);
  fill_integer<int32_t, uint32_t>(table, DType::i32);
  fill_integer<uint32_t, uint32_t>(table, DType::u32);
  fill_integer<int64_t, uint64_t>(table, DType::i64);
  fill_integer<uint64_t, uint64_t>(table, DType::u64);
  fill_bool(table);
}
