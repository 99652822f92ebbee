// A row in registers as a value, and what is computed with it (device/row.cuh).
#pragma once

#include "device/elements.cuh"
#include "device/row_threads.cuh"

namespace commlib {

template <class T, int kPairs>
class RowBlock;

// One number of a row.
struct Value {
  bool present;
  float number;
  __device__ __forceinline__ operator float() const { return number; }
};
__device__ __forceinline__ bool has(const Value& value) { return value.present; }

template <class T, int kPairs>
struct Row {
  static constexpr int kElements = 16 / sizeof(T);  // of a pair
  const RowBlock<T, kPairs>* block;                 // null: of a number
  float v[kPairs][kElements];

  __device__ __forceinline__ explicit Row(const RowBlock<T, kPairs>* of) : block(of) {}
  __device__ __forceinline__ Row(float x) : block(nullptr) {
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
#pragma unroll
      for (int e = 0; e < kElements; ++e) v[k][e] = x;
  }
  __device__ __forceinline__ Row(const Value& value) : Row(value.number) {}

  template <class F>
  friend __device__ __forceinline__ Row map(const Row& a, const Row& b, F f) {
    Row result(a.block ? a.block : b.block);
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
#pragma unroll
      for (int e = 0; e < kElements; ++e) result.v[k][e] = f(a.v[k][e], b.v[k][e]);
    return result;
  }
  template <class F>
  friend __device__ __forceinline__ Row map(const Row& a, F f) {
    return map(a, a, [&](float x, float) { return f(x); });
  }
  friend __device__ __forceinline__ Row operator+(const Row& a, const Row& b) {
    return map(a, b, [](float x, float y) { return x + y; });
  }
  friend __device__ __forceinline__ Row operator-(const Row& a, const Row& b) {
    return map(a, b, [](float x, float y) { return x - y; });
  }
  friend __device__ __forceinline__ Row operator*(const Row& a, const Row& b) {
    return map(a, b, [](float x, float y) { return x * y; });
  }
  friend __device__ __forceinline__ Row operator/(const Row& a, const Row& b) {
    return map(a, b, [](float x, float y) { return x / y; });
  }
  friend __device__ __forceinline__ Row operator-(const Row& a) {
    return map(a, [](float x) { return -x; });
  }
  friend __device__ __forceinline__ Row abs(const Row& a) {
    return map(a, [](float x) { return fabsf(x); });
  }
  friend __device__ __forceinline__ Row max(const Row& a, const Row& b) {
    return map(a, b, [](float x, float y) { return Larger::of(x, y); });
  }
  friend __device__ __forceinline__ Row min(const Row& a, const Row& b) { return -max(-a, -b); }

  // To T, the type of x, and back.
  friend __device__ __forceinline__ Row round(const Row& a) {
    Row result(a.block);
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
#pragma unroll
      for (int e = 0; e < kElements; e += 4) {
        u32 w[Four<T>::kWords];
        Four<T>::narrow(&a.v[k][e], w);
        Four<T>::widen(w, &result.v[k][e]);
      }
    return result;
  }
  friend __device__ __forceinline__ float sum(const Row& a) {
    return a.block->template across<Added>(a);
  }
  friend __device__ __forceinline__ float max(const Row& a) {
    return a.block->template across<Larger>(a);
  }
  friend __device__ __forceinline__ SumAndMax sum_and_max(const Row& a, const Row& b) {
    return a.block->sum_and_max(a, b);
  }
};
// A number is a number inside an epilogue too, where the names above hide CUDA's.
__device__ __forceinline__ float max(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float min(float a, float b) { return fminf(a, b); }
__device__ __forceinline__ float abs(float a) { return fabsf(a); }

// Columns that share a number: as many neighbouring threads hold them.
template <class Op, int kColumns, class T, int kPairs>
__device__ __forceinline__ Row<T, kPairs> across_groups(const Row<T, kPairs>& a) {
  constexpr int kElements = Row<T, kPairs>::kElements, kLanes = kColumns / kElements;
  static_assert(kLanes > 0 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "lanes of one warp");
  Row<T, kPairs> result(a.block);
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    float each[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) each[e] = a.block->has_pair(k) ? a.v[k][e] : Op::none();
    const float all = of_lanes<Op, kLanes>(by_halves<Op>(each));
#pragma unroll
    for (int e = 0; e < kElements; ++e) result.v[k][e] = all;
  }
  return result;
}
template <int kColumns, class T, int kPairs>
__device__ __forceinline__ Row<T, kPairs> sum_of_groups(const Row<T, kPairs>& a) {
  return across_groups<Added, kColumns>(a);
}
template <int kColumns, class T, int kPairs>
__device__ __forceinline__ Row<T, kPairs> max_of_groups(const Row<T, kPairs>& a) {
  return across_groups<Larger, kColumns>(a);
}

}  // namespace commlib
