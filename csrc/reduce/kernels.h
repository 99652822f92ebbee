// The loops of the reduce kernels; included by one source file per x86-64 level and element class.
//
// Everything is in an anonymous namespace and no standard template is used: a comdat copy compiled
// for a higher level would be picked by the linker for all callers and crash older CPUs.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "commlib/reduce.h"

#define COMMLIB_CONCAT_(a, b) a##b
#define COMMLIB_CONCAT(a, b) COMMLIB_CONCAT_(a, b)
// A function of this level: COMMLIB_LEVEL(fill_floats) is fill_floats_v3 in the v3 objects.
#define COMMLIB_LEVEL(name) COMMLIB_CONCAT(name##_, COMMLIB_ISA)

namespace {

using commlib::DType;
using commlib::RedOp;
using commlib::ReduceTable;

inline uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}

inline float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

// Reductions on the accumulator. NaN wins in min and max, as in torch.minimum.
struct Sum {
  template <class A>
  static A of(A a, A b) {
    return a + b;
  }
};
struct Prod {
  template <class A>
  static A of(A a, A b) {
    return a * b;
  }
};
struct Min {
  template <class A>
  static A of(A a, A b) {
    return (a < b) | (a != a) ? a : b;
  }
};
struct Max {
  template <class A>
  static A of(A a, A b) {
    return (a > b) | (a != a) ? a : b;
  }
};
struct Band {
  template <class A>
  static A of(A a, A b) {
    return a & b;
  }
};
struct Bor {
  template <class A>
  static A of(A a, A b) {
    return a | b;
  }
};
struct Bxor {
  template <class A>
  static A of(A a, A b) {
    return a ^ b;
  }
};

// The number `n` in every lane of an accumulator.
template <class A>
A broadcast(int n) {
  if constexpr (sizeof(A) > 8) {
    return A{} + static_cast<float>(n);
  } else {
    return static_cast<A>(n);
  }
}

// What happens to the accumulator before it is stored.
struct Keep {
  template <class A>
  static A of(A a, A) {
    return a;
  }
};
struct Divide {
  template <class A>
  static A of(A a, A n) {
    return a / n;
  }
};

// A codec says how a word in memory becomes accumulators and back. Most words hold one element
// (kLanes 1); a word may also be a vector of kLanes elements, converted as one; and bfloat16 comes
// in pairs (kPaired), since both halves of a 32-bit lane convert without crossing lanes.
template <class T, class A = T>
struct Plain {
  typedef T Word __attribute__((aligned(1), may_alias));  // tensors may start anywhere
  using Acc = A;
  static constexpr int kLanes = 1;
  static constexpr bool kPaired = false;
  static A load(T word) { return static_cast<A>(word); }
  static T store(A a) { return static_cast<T>(a); }
};

constexpr size_t kBlock = 512;  // words kept in L1 while five or more sources are added up

// Two to four sources in one pass: nothing but the result is written.
template <class C, class Op, class Finish, int N>
void reduce_fused(typename C::Word* out, const void* const* sources, size_t words) {
  using A = typename C::Acc;
  using W = typename C::Word;
  const W* s[N];
  for (int r = 0; r < N; ++r) s[r] = static_cast<const W*>(sources[r]);
#pragma GCC ivdep
  for (size_t i = 0; i < words; ++i) {
    if constexpr (!C::kPaired) {
      A sum = Op::of(C::load(s[0][i]), C::load(s[1][i]));
      if constexpr (N > 2) sum = Op::of(sum, C::load(s[2][i]));
      if constexpr (N > 3) sum = Op::of(sum, C::load(s[3][i]));
      out[i] = C::store(Finish::of(sum, broadcast<A>(N)));
    } else {
      A low = Op::of(C::load_low(s[0][i]), C::load_low(s[1][i]));
      A high = Op::of(C::load_high(s[0][i]), C::load_high(s[1][i]));
      if constexpr (N > 2) low = Op::of(low, C::load_low(s[2][i]));
      if constexpr (N > 2) high = Op::of(high, C::load_high(s[2][i]));
      if constexpr (N > 3) low = Op::of(low, C::load_low(s[3][i]));
      if constexpr (N > 3) high = Op::of(high, C::load_high(s[3][i]));
      out[i] = C::store(Finish::of(low, broadcast<A>(N)), Finish::of(high, broadcast<A>(N)));
    }
  }
}

template <class C, class Op, class Finish>
void reduce_block(typename C::Word* out, const void* const* sources, int n, size_t first,
                  size_t words) {
  using A = typename C::Acc;
  using W = typename C::Word;
  A low[kBlock];
  [[maybe_unused]] A high[kBlock];
  const W* s = static_cast<const W*>(sources[0]) + first;
  for (size_t i = 0; i < words; ++i) {
    if constexpr (!C::kPaired) {
      low[i] = C::load(s[i]);
    } else {
      low[i] = C::load_low(s[i]);
      high[i] = C::load_high(s[i]);
    }
  }
  for (int r = 1; r < n; ++r) {
    s = static_cast<const W*>(sources[r]) + first;
    for (size_t i = 0; i < words; ++i) {
      if constexpr (!C::kPaired) {
        low[i] = Op::of(low[i], C::load(s[i]));
      } else {
        low[i] = Op::of(low[i], C::load_low(s[i]));
        high[i] = Op::of(high[i], C::load_high(s[i]));
      }
    }
  }
  for (size_t i = 0; i < words; ++i) {
    if constexpr (!C::kPaired) {
      out[first + i] = C::store(Finish::of(low[i], broadcast<A>(n)));
    } else {
      out[first + i] =
          C::store(Finish::of(low[i], broadcast<A>(n)), Finish::of(high[i], broadcast<A>(n)));
    }
  }
}

template <class C, class Op, class Finish>
void reduce_words(void* out, const void* const* sources, int n, size_t words) {
  using W = typename C::Word;
  W* o = static_cast<W*>(out);
  if (n == 2) return reduce_fused<C, Op, Finish, 2>(o, sources, words);
  if (n == 3) return reduce_fused<C, Op, Finish, 3>(o, sources, words);
  if (n == 4) return reduce_fused<C, Op, Finish, 4>(o, sources, words);
  for (size_t first = 0; first < words; first += kBlock) {
    reduce_block<C, Op, Finish>(o, sources, n, first,
                                words - first < kBlock ? words - first : kBlock);
  }
}

template <class C, class Op, class Finish>
void reduce_all(void* out, const void* const* sources, int n, size_t count) {
  using W = typename C::Word;
  if (n == 1) {
    if (out != sources[0]) memcpy(out, sources[0], count * sizeof(W) / C::kLanes);
    return;
  }
  const size_t words = count / C::kLanes;
  reduce_words<C, Op, Finish>(out, sources, n, words);
  if (C::kLanes == 1 || words * C::kLanes == count) return;
  // What does not fill a word travels through one of its own.
  const size_t at = words * sizeof(W);
  const size_t bytes = (count - words * C::kLanes) * (sizeof(W) / C::kLanes);
  W tail[64] = {};
  const void* pointers[64];
  for (int r = 0; r < n; ++r) {
    memcpy(&tail[r], static_cast<const char*>(sources[r]) + at, bytes);
    pointers[r] = &tail[r];
  }
  W result;
  reduce_words<C, Op, Finish>(&result, pointers, n, 1);
  memcpy(static_cast<char*>(out) + at, &result, bytes);
}

template <class C>
void fill_arithmetic(ReduceTable* table, DType dtype) {
  auto& fn = table->fn[static_cast<int>(dtype)];
  fn[static_cast<int>(RedOp::sum)] = reduce_all<C, Sum, Keep>;
  fn[static_cast<int>(RedOp::prod)] = reduce_all<C, Prod, Keep>;
  fn[static_cast<int>(RedOp::min)] = reduce_all<C, Min, Keep>;
  fn[static_cast<int>(RedOp::max)] = reduce_all<C, Max, Keep>;
  fn[static_cast<int>(RedOp::avg)] = reduce_all<C, Sum, Divide>;
}

}  // namespace
