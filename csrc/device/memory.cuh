// Memory accesses by name, and a tensor as words: every instruction that orders memory is here
// once.
#pragma once

#include "commlib/job.h"

namespace commlib {

struct alignas(16) Pair {
  u64 a, b;
};

// As v >> 32, which a compiler would turn into arithmetic of 64 bits.
__device__ __forceinline__ u32 upper_half(u64 v) {
  u32 upper;
  asm("{\n.reg .u32 lower;\nmov.b64 {lower, %0}, %1;\n}" : "=r"(upper) : "l"(v));
  return upper;
}

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
__device__ __forceinline__ u32 ld_relaxed_sys(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ u64 ld_acquire_sys(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Nothing comes back, so nothing waits.
__device__ __forceinline__ void add_relaxed(u64* p, u64 v) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// The value is known here: nothing that it takes is left for later.
template <class T>
__device__ __forceinline__ void known(T*& p) {
  asm volatile("" : "+l"(p));
  __builtin_assume(__isGlobal(p));  // else an access asks whether it is
}
__device__ __forceinline__ void known(int& i) { asm volatile("" : "+r"(i)); }

// What ran ahead on the stream is over and its writes are there: first thing in every kernel, since
// its launch may have been early (cuda/module.h).
__device__ __forceinline__ void wait_for_stream() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel of the stream may start once every block of this one has called this or exited;
// it then waits until this one has ended (wait_for_stream), which hides the time of its launch.
//
// Kernels that wait for peers call this at their start if their communicator is the first one of
// its process (Job::first), which saves 0.1 us; the others once their first packets have come from
// all peers. The blocks of the same number are then on all GPUs, so this grid ends whatever starts
// next; earlier, two grids together could keep out those of the first communicator for which the
// peers wait (csrc/nccl/footprint.h).
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

// Two words behind each other, from byte `skew` on.
__device__ __forceinline__ u64 shifted(u64 low, u64 high, u32 skew) {
  return skew == 0 ? low : low >> (8 * skew) | high << (64 - 8 * skew);
}

// Up to 8 bytes at any address, from the aligned words that they lie in: no allocation ends within
// one. What lies behind these bytes comes with them.
__device__ __forceinline__ u64 gather_bytes(const u8* p, u32 n) {
  const u32 skew = reinterpret_cast<u64>(p) & 7;
  const u64* words = reinterpret_cast<const u64*>(p - skew);
  return shifted(words[0], skew + n > 8 ? words[1] : 0, skew);
}
// Where there are many of them, which in line would take too many registers.
__device__ __noinline__ u64 gather_apart(const u8* p, u32 n) { return gather_bytes(p, n); }
// The same of up to 16.
__device__ __forceinline__ Pair gather_pair(const u8* p, u32 n) {
  const u32 skew = reinterpret_cast<u64>(p) & 15;
  const auto* pairs = reinterpret_cast<const ulonglong2*>(p - skew);
  const ulonglong2 low = pairs[0], high = skew + n > 16 ? pairs[1] : low;
  const bool half = (skew & 8) != 0;
  const u64 a = half ? low.y : low.x, b = half ? high.x : low.y, c = half ? high.y : high.x;
  return {shifted(a, b, skew & 7), shifted(b, c, skew & 7)};
}

// 8 bytes to any address, in as large pieces as it allows.
__device__ __forceinline__ void spread_word(u8* p, u64 v) {
  const u32 skew = reinterpret_cast<u64>(p) & 3;
  if (skew == 0) {
    reinterpret_cast<u32*>(p)[0] = static_cast<u32>(v);
    reinterpret_cast<u32*>(p)[1] = static_cast<u32>(v >> 32);
  } else if (skew == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      reinterpret_cast<unsigned short*>(p)[i] = static_cast<unsigned short>(v >> (16 * i));
  } else {
#pragma unroll
    for (int b = 0; b < 8; ++b) p[b] = static_cast<u8>(v >> (8 * b));
  }
}
// As many of them as there are.
__device__ __noinline__ void spread_bytes(u8* p, u32 n, u64 v) {
  if (n == 8) return spread_word(p, v);
  for (u32 b = 0; b < n; ++b) p[b] = static_cast<u8>(v >> (8 * b));
}

// A tensor of any length at any address, in words of 8 bytes or pairs of words. What is read beyond
// its end is nobody's, and nothing is written there.
struct Span {
  static constexpr bool kPartsAreKnown = false;  // too many registers
  u8* data;
  u64 bytes;
  bool aligned8, aligned16;

  Span() = default;
  __device__ Span(const void* p, u64 n)
      : data(static_cast<u8*>(const_cast<void*>(p))),
        bytes(n),
        aligned8((reinterpret_cast<u64>(p) & 7) == 0),
        aligned16((reinterpret_cast<u64>(p) & 15) == 0) {}

  // How many of `n` bytes from `at` on are there.
  __device__ __forceinline__ u32 left(u64 at, u32 n) const {
    return bytes - at < n ? static_cast<u32>(bytes - at) : n;
  }
  // The bytes [offset, offset + n), cut to what is there.
  __device__ Span part(u64 offset, u64 n) const {
    const u64 left = offset < bytes ? bytes - offset : 0;
    return {data + offset, n < left ? n : left};
  }
  // The i-th of the parts of so many bytes.
  __device__ Span part_of(int i, u64 n) const { return part(i * n, n); }

  __device__ __forceinline__ u64 word(u64 i) const {
    const u64 at = 8 * i;
    if (aligned8 && at + 8 <= bytes) return *reinterpret_cast<const u64*>(data + at);
    return at < bytes ? gather_apart(data + at, left(at, 8)) : 0;
  }
  __device__ __forceinline__ void set_word(u64 i, u64 v) const {
    const u64 at = 8 * i;
    if (aligned8 && at + 8 <= bytes) {
      *reinterpret_cast<u64*>(data + at) = v;
    } else if (at < bytes) {
      spread_bytes(data + at, left(at, 8), v);
    }
  }
  // The same in line, where every call must be fast; kAligned: the caller knows that it is.
  template <bool kAligned>
  __device__ __forceinline__ u64 word_here(u64 i) const {
    const u64 at = 8 * i;
    if (at >= bytes) return 0;
    return kAligned || aligned8 ? *reinterpret_cast<const u64*>(data + at)
                                : gather_bytes(data + at, left(at, 8));
  }
  template <bool kAligned>
  __device__ __forceinline__ void set_word_here(u64 i, u64 v) const {
    const u64 at = 8 * i;
    if ((kAligned || aligned8) && at + 8 <= bytes) {
      *reinterpret_cast<u64*>(data + at) = v;
    } else if (!kAligned && at + 8 <= bytes) {
      spread_word(data + at, v);
    } else if (at < bytes) {
      spread_bytes(data + at, left(at, 8), v);
    }
  }
  __device__ __forceinline__ Pair pair(u64 i) const {
    const u64 at = 16 * i;
    if (at >= bytes) return {0, 0};
    if (aligned16) return ld_stream(data + at);
    return aligned8 ? Pair{word_here<true>(2 * i), word_here<true>(2 * i + 1)}
                    : gather_pair(data + at, left(at, 16));
  }
  __device__ __forceinline__ void set_pair(u64 i, Pair v) const {
    const u64 at = 16 * i;
    if (aligned16 && at + 16 <= bytes) {
      st_stream(data + at, v);
    } else {
      set_word_here<false>(2 * i, v.a);
      set_word_here<false>(2 * i + 1, v.b);
    }
  }
};

// A tensor of whole pairs, aligned to them and shorter than 2^31 bytes for each rank, of which a
// warp moves 32 at once: finding a lane's takes three instructions.
struct Pairs {
  static constexpr bool kPartsAreKnown = true;
  u8* data;        // with this lane's place
  int first, end;  // pairs; end without it

  Pairs() = default;
  __device__ Pairs(u8* data, int first, int end) : data(data), first(first), end(end) {}
  __device__ Pairs(const void* p, u64 bytes)
      : Pairs(static_cast<u8*>(const_cast<void*>(p)) + lane() * 16, 0,
              static_cast<int>(bytes / 16) - lane()) {
    known(data);
  }
  // The i-th of the parts of so many bytes, known here.
  __device__ Pairs part_of(int i, u64 n) const {
    const int pairs = static_cast<int>(n / 16), from = i * pairs, to = from + pairs - lane();
    Pairs part(data, from, to < end ? to : end);
    known(part.first);
    known(part.end);
    return part;
  }
  __device__ __forceinline__ Pair pair(u32 step) const {
    const int i = first + static_cast<int>(step * 32);
    return i < end ? ld_stream(data + i * 16ll) : Pair{0, 0};
  }
  __device__ __forceinline__ void set_pair(u32 step, Pair v) const {
    const int i = first + static_cast<int>(step * 32);
    if (i < end) st_stream(data + i * 16ll, v);
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x & 31; }
};

// Whether tensors, and what begins every `stride` bytes in them, are aligned to pairs.
__device__ __forceinline__ bool are_aligned(const Job& job, u64 stride) {
  const u64 all = reinterpret_cast<u64>(job.in) | reinterpret_cast<u64>(job.out) | stride;
  return (all & 15) == 0;
}
// Whether all that is moved begins so.
template <int N>
__device__ __forceinline__ bool are_aligned(const Job& job, const Moves& moves) {
  u64 all = reinterpret_cast<u64>(job.in) | reinterpret_cast<u64>(job.out);
#pragma unroll
  for (int r = 0; r < N; ++r) all |= moves.send_at[r] | moves.take_at[r];
  return (all & 15) == 0;
}

}  // namespace commlib
