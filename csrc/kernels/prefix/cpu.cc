// Prefix compare: four vectors at a time | the vector that differs | what is left.
// One function per x86-64 level in one file, by the compiler's target attribute, and plain C++
// for every other CPU. Below 8 KiB a call costs about as much as reading one of its inputs.
#include <cstring>

#include "kernels/prefix/host.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace commlib::kernels {
namespace {

template <class A, class B>
size_t scan(const A* a, const B* b, size_t from, size_t count) {
  while (from < count && a[from] == b[from]) ++from;
  return from;
}

constexpr size_t kBlockBytes = 256;

// memcmp is vectorised by the C library; inside the block that differs, halves are compared.
template <class T>
size_t same_plain(const T* a, const T* b, size_t count) {
  constexpr size_t kBlock = kBlockBytes / sizeof(T);
  size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    if (std::memcmp(a + i, b + i, kBlockBytes) == 0) continue;
    size_t half = kBlock / 2;
    for (; half >= 4; half /= 2) {
      if (std::memcmp(a + i, b + i, half * sizeof(T)) == 0) i += half;
    }
    break;
  }
  return scan(a, b, i, count);
}

size_t mixed_plain(const int32_t* a, const int64_t* b, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    int64_t differ = 0;
    for (size_t k = 0; k < 8; ++k) differ |= a[i + k] ^ b[i + k];
    if (differ != 0) break;
  }
  return scan(a, b, i, count);
}

#ifdef __x86_64__
#define COMMLIB_V3 __attribute__((target("avx2,bmi")))
#define COMMLIB_V4 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2")))

COMMLIB_V3 inline __m256i load_v3(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// Bytes that two vectors share from the start on; 32: all.
COMMLIB_V3 inline unsigned equal_bytes(__m256i a, __m256i b) {
  const auto equal = static_cast<unsigned>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)));
  return equal == ~0u ? 32 : _tzcnt_u32(~equal);
}

template <class T>
COMMLIB_V3 size_t same_v3(const T* a, const T* b, size_t count) {
  constexpr size_t kLanes = 32 / sizeof(T);
  size_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    const __m256i x0 = _mm256_xor_si256(load_v3(a + i), load_v3(b + i));
    const __m256i x1 = _mm256_xor_si256(load_v3(a + i + kLanes), load_v3(b + i + kLanes));
    const __m256i x2 = _mm256_xor_si256(load_v3(a + i + 2 * kLanes), load_v3(b + i + 2 * kLanes));
    const __m256i x3 = _mm256_xor_si256(load_v3(a + i + 3 * kLanes), load_v3(b + i + 3 * kLanes));
    const __m256i any = _mm256_or_si256(_mm256_or_si256(x0, x1), _mm256_or_si256(x2, x3));
    if (!_mm256_testz_si256(any, any)) break;
  }
  for (; i + kLanes <= count; i += kLanes) {
    const unsigned bytes = equal_bytes(load_v3(a + i), load_v3(b + i));
    if (bytes < 32) return i + bytes / sizeof(T);
  }
  return scan(a, b, i, count);
}

COMMLIB_V3 size_t mixed_v3(const int32_t* a, const int64_t* b, size_t count) {
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const auto* four = reinterpret_cast<const __m128i*>(a + i);
    const __m256i wide = _mm256_cvtepi32_epi64(_mm_loadu_si128(four));
    const unsigned bytes = equal_bytes(wide, load_v3(b + i));
    if (bytes < 32) return i + bytes / sizeof(int64_t);
  }
  return scan(a, b, i, count);
}

COMMLIB_V4 inline __m512i load_v4(const void* p) { return _mm512_loadu_si512(p); }

// Adds the bits in which two vectors differ: one instruction.
COMMLIB_V4 inline __m512i differing(__m512i so_far, const void* a, const void* b) {
  constexpr int kOrXor = 0xf6;
  return _mm512_ternarylogic_epi64(so_far, load_v4(a), load_v4(b), kOrXor);
}

// Bytes from the start on that are equal, up to where four vectors differ or are not full. Loads
// that cross cache lines halve the rate, so `a` is read from a line's start on.
COMMLIB_V4 inline size_t equal_blocks_v4(const void* a, const void* b, size_t bytes) {
  const auto *x = static_cast<const char*>(a), *y = static_cast<const char*>(b);
  size_t i = 0;
  const size_t past_line = reinterpret_cast<uintptr_t>(x) % 64;
  if (bytes >= 1024 && past_line % 4 == 0) {
    const __m512i first = _mm512_xor_si512(load_v4(x), load_v4(y));
    if (_mm512_test_epi64_mask(first, first) != 0) return 0;
    i = 64 - past_line;
  }
  for (; i + 256 <= bytes; i += 256) {
    __m512i any = _mm512_xor_si512(load_v4(x + i), load_v4(y + i));
    any = differing(any, x + i + 64, y + i + 64);
    any = differing(any, x + i + 128, y + i + 128);
    any = differing(any, x + i + 192, y + i + 192);
    if (_mm512_test_epi64_mask(any, any) != 0) break;
  }
  return i;
}

// Single vectors, the last one cut short: a compare gives a mask of lanes that differ.
COMMLIB_V4 size_t same32_v4(const int32_t* a, const int32_t* b, size_t count) {
  for (size_t i = equal_blocks_v4(a, b, count * 4) / 4; i < count; i += 16) {
    const size_t left = count - i;
    const __mmask16 in = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
    const __m512i x = _mm512_maskz_loadu_epi32(in, a + i), y = _mm512_maskz_loadu_epi32(in, b + i);
    if (const unsigned differ = _mm512_cmpneq_epi32_mask(x, y)) return i + _tzcnt_u32(differ);
  }
  return count;
}

COMMLIB_V4 size_t same64_v4(const int64_t* a, const int64_t* b, size_t count) {
  for (size_t i = equal_blocks_v4(a, b, count * 8) / 8; i < count; i += 8) {
    const size_t left = count - i;
    const __mmask8 in = left >= 8 ? 0xff : static_cast<__mmask8>((1u << left) - 1);
    const __m512i x = _mm512_maskz_loadu_epi64(in, a + i), y = _mm512_maskz_loadu_epi64(in, b + i);
    if (const unsigned differ = _mm512_cmpneq_epi64_mask(x, y)) return i + _tzcnt_u32(differ);
  }
  return count;
}

COMMLIB_V4 size_t mixed_v4(const int32_t* a, const int64_t* b, size_t count) {
  for (size_t i = 0; i < count; i += 8) {
    const size_t left = count - i;
    const __mmask8 in = left >= 8 ? 0xff : static_cast<__mmask8>((1u << left) - 1);
    const __m512i x = _mm512_maskz_cvtepi32_epi64(in, _mm256_maskz_loadu_epi32(in, a + i));
    const __m512i y = _mm512_maskz_loadu_epi64(in, b + i);
    if (const unsigned differ = _mm512_cmpneq_epi64_mask(x, y)) return i + _tzcnt_u32(differ);
  }
  return count;
}

constexpr PrefixTable kV4 = {"v4", same32_v4, same64_v4, mixed_v4};
constexpr PrefixTable kV3 = {"v3", same_v3<int32_t>, same_v3<int64_t>, mixed_v3};
constexpr PrefixTable kV2 = {"v2", same_plain<int32_t>, same_plain<int64_t>, mixed_plain};
#else
constexpr PrefixTable kPortable = {"portable", same_plain<int32_t>, same_plain<int64_t>,
                                   mixed_plain};
#endif

}  // namespace

const PrefixTable* prefix_table(const char* isa) {
  const bool any = !isa || !*isa || !std::strcmp(isa, "auto");
#ifdef __x86_64__
  const auto wants = [&](const char* level) { return any || !std::strcmp(isa, level); };
  __builtin_cpu_init();
  const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("bmi2");
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi");
  if (v4 && wants("v4")) return &kV4;
  if (v3 && wants("v3")) return &kV3;
  if (wants("v2")) return &kV2;
  return nullptr;
#else
  return any ? &kPortable : nullptr;
#endif
}

const PrefixTable* prefix = prefix_table("auto");

bool prefix_use(const char* isa) {
  const PrefixTable* table = prefix_table(isa);
  if (table) prefix = table;
  return table != nullptr;
}

}  // namespace commlib::kernels
