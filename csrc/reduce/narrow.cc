// Floats to 8-bit floats: multiply in fp32 | saturate | round to nearest even.
#include "float8.h"
#include "halves.h"

namespace {

constexpr size_t kBlock8 = 256;  // floats kept in L1 between widening and rounding

struct WidenFloat {
  static void block(float* out, const unsigned char* in, size_t count) {
    memcpy(out, in, count * sizeof(float));
  }
};

struct WidenBFloat16 {
  static void block(float* out, const unsigned char* in, size_t count) {
    uint16_t words[kBlock8];
    memcpy(words, in, count * sizeof(uint16_t));
    for (size_t i = 0; i < count; ++i) out[i] = float_of(uint32_t(words[i]) << 16);
  }
};

// The codec takes whole words; the last one is filled up with zeros.
struct WidenFloat16 {
  static void block(float* out, const unsigned char* in, size_t count) {
    using Word = Float16::Word;
    Word words[kBlock8 * sizeof(uint16_t) / sizeof(Word)];
    const size_t needed = (count + Float16::kLanes - 1) / Float16::kLanes;
    if (needed > 0) memset(&words[needed - 1], 0, sizeof(Word));
    memcpy(words, in, count * sizeof(uint16_t));
    for (size_t i = 0; i < needed; ++i) {
#ifdef __F16C__
      const Float16::Acc wide = Float16::load(words[i]);
      memcpy(out + i * Float16::kLanes, &wide, sizeof(wide));
#else
      out[2 * i] = Float16::load_low(words[i]);
      out[2 * i + 1] = Float16::load_high(words[i]);
#endif
    }
  }
};

// E4M3 saturates by itself; E5M2 gives infinity, which is one above its largest number.
struct SaturatedE5M2 : E5M2 {
  static uint8_t store(float x) {
    const uint8_t byte = E5M2::store(x);
    return (byte & 0x7fu) == 0x7cu ? byte - 1 : byte;
  }
};

template <class Widen, class To>
void narrow_all(void* out, const void* in, size_t element_bytes, size_t count, float factor) {
  auto* to = static_cast<unsigned char*>(out);
  const auto* from = static_cast<const unsigned char*>(in);
  float wide[kBlock8];
  for (size_t first = 0; first < count; first += kBlock8) {
    const size_t n = count - first < kBlock8 ? count - first : kBlock8;
    Widen::block(wide, from + first * element_bytes, n);
    unsigned char* block = to + first;
#pragma GCC ivdep
    for (size_t i = 0; i < n; ++i) block[i] = To::store(wide[i] * factor);
  }
}

template <class To>
void narrow_floats(void* out, const void* in, size_t count, float factor) {
  narrow_all<WidenFloat, To>(out, in, 4, count, factor);
}
template <class To>
void narrow_float16(void* out, const void* in, size_t count, float factor) {
  narrow_all<WidenFloat16, To>(out, in, 2, count, factor);
}
template <class To>
void narrow_bfloat16(void* out, const void* in, size_t count, float factor) {
  narrow_all<WidenBFloat16, To>(out, in, 2, count, factor);
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
