// Floats to 8-bit floats: multiply in fp32 | saturate | round to nearest even.
#include "float8.h"
#include "widen.h"

namespace {

// E4M3 saturates by itself; E5M2 gives infinity, which is one above its largest number.
struct SaturatedE5M2 : E5M2 {
  static uint8_t store(float x) {
    const uint8_t byte = E5M2::store(x);
    return (byte & 0x7fu) == 0x7cu ? byte - 1 : byte;
  }
};

template <class From, class To>
void narrow_all(void* out, const void* in, size_t element_bytes, size_t count, float factor) {
  auto* to = static_cast<unsigned char*>(out);
  const auto* from = static_cast<const unsigned char*>(in);
  float wide[kBlockFloats];
  for (size_t first = 0; first < count; first += kBlockFloats) {
    const size_t n = count - first < kBlockFloats ? count - first : kBlockFloats;
    From::widen(wide, from + first * element_bytes, n);
    unsigned char* block = to + first;
#pragma GCC ivdep
    for (size_t i = 0; i < n; ++i) block[i] = To::store(wide[i] * factor);
  }
}

template <class To>
void narrow_floats(void* out, const void* in, size_t count, float factor) {
  narrow_all<BlocksOfFloat, To>(out, in, 4, count, factor);
}
template <class To>
void narrow_float16(void* out, const void* in, size_t count, float factor) {
  narrow_all<BlocksOfFloat16, To>(out, in, 2, count, factor);
}
template <class To>
void narrow_bfloat16(void* out, const void* in, size_t count, float factor) {
  narrow_all<BlocksOfBFloat16, To>(out, in, 2, count, factor);
}

template <class To>
void fill_to(commlib::NarrowFn* narrow) {
  narrow[static_cast<int>(DType::f32)] = narrow_floats<To>;
  narrow[static_cast<int>(DType::f16)] = narrow_float16<To>;
  narrow[static_cast<int>(DType::bf16)] = narrow_bfloat16<To>;
}

}  // namespace

void COMMLIB_LEVEL(fill_narrow)(ReduceTable* table) {
  fill_to<E4M3>(table->to_e4m3);
  fill_to<SaturatedE5M2>(table->to_e5m2);
}
