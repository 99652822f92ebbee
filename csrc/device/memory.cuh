// Memory accesses by name, and a tensor as words: every instruction that orders memory is here
// once.
#pragma once

#include "commlib/job.h"

namespace commlib {

struct alignas(16) Pair {
  u64 a, b;
};

// 16 bytes that arrive as one: both halves are of the same store. Used for data with its flag.
__device__ __forceinline__ void st_relaxed_sys(void* p, Pair v) {
  asm volatile(
      "{\n.reg .b128 v;\nmov.b128 v, {%1, %2};\nst.relaxed.sys.global.b128 [%0], v;\n}" ::"l"(p),
      "l"(v.a), "l"(v.b)
      : "memory");
}
__device__ __forceinline__ Pair ld_relaxed_sys(const void* p) {
  Pair v;
  asm volatile("{\n.reg .b128 v;\nld.relaxed.sys.global.b128 v, [%2];\nmov.b128 {%0, %1}, v;\n}"
               : "=l"(v.a), "=l"(v.b)
               : "l"(p)
               : "memory");
  return v;
}

// A word that peers poll. The fence before it orders what this thread has seen written.
__device__ __forceinline__ void st_relaxed_sys(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ u64 ld_relaxed_sys(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ u64 ld_acquire_sys(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// What ran ahead on the stream is over and its writes are there: first thing in every kernel, since
// its launch may have been early (cuda/module.h).
__device__ __forceinline__ void wait_for_stream() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The kernel behind this one on the stream may take its place now; it waits all the same until this
// one is over (wait_for_stream). It saves the next one's start. Not for grids that fill the GPU and
// wait for peers: two of them would keep out a third, of another communicator, which those peers
// may wait for.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ u64 clock_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// Bulk data that nobody reads twice here: it need not stay in L1.
__device__ __forceinline__ Pair ld_stream(const void* p) {
  Pair v;
  asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.a), "=l"(v.b)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ void st_stream(void* p, Pair v) {
  asm volatile("st.global.L1::no_allocate.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.a), "l"(v.b)
               : "memory");
}

// Up to 8 bytes at any address, one by one.
__device__ __noinline__ u64 gather_bytes(const u8* p, u32 n) {
  u64 v = 0;
  for (u32 b = 0; b < n; ++b) v |= u64{p[b]} << (8 * b);
  return v;
}
__device__ __noinline__ void spread_bytes(u8* p, u32 n, u64 v) {
  for (u32 b = 0; b < n; ++b) p[b] = static_cast<u8>(v >> (8 * b));
}

// A tensor of any length at any address, in words of 8 bytes or pairs of words. What lies beyond
// the end reads as 0 and is not written; tensors that are not aligned go byte by byte.
struct Span {
  u8* data;
  u64 bytes;
  bool aligned8, aligned16;

  __device__ Span(const void* p, u64 n)
      : data(static_cast<u8*>(const_cast<void*>(p))),
        bytes(n),
        aligned8((reinterpret_cast<u64>(p) & 7) == 0),
        aligned16((reinterpret_cast<u64>(p) & 15) == 0) {}

  __device__ __forceinline__ u32 left(u64 at) const {
    return bytes - at < 8 ? static_cast<u32>(bytes - at) : 8;
  }
  // The bytes [offset, offset + n), cut to what is there.
  __device__ Span part(u64 offset, u64 n) const {
    const u64 left = offset < bytes ? bytes - offset : 0;
    return {data + offset, n < left ? n : left};
  }

  __device__ __forceinline__ u64 word(u64 i) const {
    const u64 at = 8 * i;
    if (aligned8 && at + 8 <= bytes) return *reinterpret_cast<const u64*>(data + at);
    return at < bytes ? gather_bytes(data + at, left(at)) : 0;
  }
  __device__ __forceinline__ void set_word(u64 i, u64 v) const {
    const u64 at = 8 * i;
    if (aligned8 && at + 8 <= bytes) {
      *reinterpret_cast<u64*>(data + at) = v;
    } else if (at < bytes) {
      spread_bytes(data + at, left(at), v);
    }
  }
  __device__ __forceinline__ Pair pair(u64 i) const {
    const u64 at = 16 * i;
    if (aligned16 && at + 16 <= bytes) return ld_stream(data + at);
    return {word(2 * i), word(2 * i + 1)};
  }
  __device__ __forceinline__ void set_pair(u64 i, Pair v) const {
    const u64 at = 16 * i;
    if (aligned16 && at + 16 <= bytes) {
      st_stream(data + at, v);
    } else {
      set_word(2 * i, v.a);
      set_word(2 * i + 1, v.b);
    }
  }
};

}  // namespace commlib
