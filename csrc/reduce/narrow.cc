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

constexpr size_t kWideBlock = 256;  // elements as floats in L1

template <class From, class To>
void narrow(void* out, const void* in, size_t count, float factor) {
  auto* to = static_cast<unsigned char*>(out);
  const auto* from = static_cast<const unsigned char*>(in);
  float wide[kWideBlock];
  for (size_t first = 0; first < count; first += kWideBlock) {
    const size_t n = count - first < kWideBlock ? count - first : kWideBlock;
    for (size_t i = 0; i < n; i += kFloats) {
      const Floats some = read_wide<From>(from, first + i, n - i < kFloats ? n - i : kFloats);
      memcpy(wide + i, &some, sizeof(some));
    }
    unsigned char* block = to + first;
#pragma GCC ivdep
    for (size_t i = 0; i < n; ++i) block[i] = To::store(wide[i] * factor);
  }
}

template <class To>
void fill_to(commlib::NarrowFn* narrows) {
  narrows[static_cast<int>(DType::f32)] = narrow<OfFloat, To>;
  narrows[static_cast<int>(DType::f16)] = narrow<OfFloat16, To>;
  narrows[static_cast<int>(DType::bf16)] = narrow<OfBFloat16, To>;
}

}  // namespace

void COMMLIB_LEVEL(fill_narrow)(ReduceTable* table) {
  fill_to<E4M3>(table->to_e4m3);
  fill_to<SaturatedE5M2>(table->to_e5m2);
}
