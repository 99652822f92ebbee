// Scatter of K and V rows into a paged cache on a GPU: load my token's rows | find out whether a
// later token takes its slot | find the slot's place, store.
//
// A group of kLanes threads moves a token, K and V together, kLoads units of each thread under way
// before the first store; rows do not depend on slots, so both are read at once. Two tokens with
// one slot would mix their rows, so only one of them is written:
//   unique    the caller knows that there are none: nobody looks
//   compared  every block compares its slots with all later ones of the call; the last token wins
//   claimed   a launch ahead, `claim`, has let every token write its number into `claims`, at its
//             slot: whose number is there now wins. Numbers of earlier calls do not matter.
// No block waits for another, and nothing is remembered from call to call.
#include "device/float8.cuh"
#include "device/memory.cuh"
#include "device/words.cuh"
#include "kernels/store/job.h"
#include "kernels/store/slots.cuh"

namespace commlib::kernels {

// A unit is moved as it is.
template <int kWidth>
struct Copy {
  static constexpr int kFromBytes = kWidth, kToBytes = kWidth;
  static constexpr bool kScales = false;
  using Value = typename WordOf<kWidth>::Type;
  static __device__ __forceinline__ Value load(const u8* p) { return ld_word<Value>(p); }
  static __device__ __forceinline__ void store(u8* p, Value v, float) { st_word(p, v); }
};

// 16 bytes of elements, or one, become 8-bit floats. The 16 bytes stay in words until then:
// elements of 2 bytes would take a register each.
template <class From, class To, int kCount>
struct Quantise {
  static_assert(kCount * sizeof(From) == 16, "the widest load");
  static constexpr int kFromBytes = 16, kToBytes = kCount;
  static constexpr bool kScales = true;
  using Value = uint4;
  static __device__ __forceinline__ Value load(const u8* p) {
    return *reinterpret_cast<const Value*>(p);
  }
  static __device__ __forceinline__ float element(u32 word, int i) {
    if constexpr (sizeof(From) == 4) {
      return __uint_as_float(word);
    } else {
      return Codec<From>::load(From{static_cast<unsigned short>(word >> (16 * i))});
    }
  }
  static __device__ __forceinline__ void store(u8* p, const Value& v, float inverse) {
    constexpr int kWord = 4 / sizeof(From);  // elements
    const u32 word[4] = {v.x, v.y, v.z, v.w};
    const auto scaled = [&](int i) { return element(word[i / kWord], i % kWord) * inverse; };
    u32 bytes[kCount / 4];
#pragma unroll
    for (int i = 0; i < kCount; i += 4)
      bytes[i / 4] = u32{saturated_pair(To{}, scaled(i), scaled(i + 1))} |
                     u32{saturated_pair(To{}, scaled(i + 2), scaled(i + 3))} << 16;
    if constexpr (kCount == 4) {
      st_word(p, bytes[0]);
    } else {
      st_word(p, u64{bytes[1]} << 32 | bytes[0]);
    }
  }
};

template <class From, class To>
struct Quantise<From, To, 1> {
  static constexpr int kFromBytes = sizeof(From), kToBytes = 1;
  static constexpr bool kScales = true;
  using Value = From;
  static __device__ __forceinline__ Value load(const u8* p) {
    return *reinterpret_cast<const Value*>(p);
  }
  static __device__ __forceinline__ void store(u8* p, Value v, float inverse) {
    *p = saturated<To>(Codec<From>::load(v) * inverse);
  }
};

// Where a unit of a token lies.
template <class Move, class Job>
struct Unit;

template <class Move>
struct Unit<Move, DenseStoreJob> {
  const DenseStoreJob& job;
  u32 side, place;

  __device__ __forceinline__ Unit(const DenseStoreJob& all, u32 unit) : job(all) {
    const u32 first = units_of_side(job, 0);
    side = unit >= first;
    place = side ? unit - first : unit;
  }
  static __device__ __forceinline__ u32 units_of_side(const DenseStoreJob& job, int side) {
    return job.elements[side] * job.element_bytes / Move::kFromBytes;
  }
  static __device__ __forceinline__ u32 units_of_token(const DenseStoreJob& job) {
    return units_of_side(job, 0) + units_of_side(job, 1);
  }
  __device__ __forceinline__ const u8* from(i64 token) const {
    return (side ? job.from[1] + token * job.from_row[1] : job.from[0] + token * job.from_row[0]) +
           place * Move::kFromBytes;
  }
  __device__ __forceinline__ u8* to(i64 slot) const {
    return (side ? job.to[1] + slot * job.to_slot[1] : job.to[0] + slot * job.to_slot[0]) +
           place * Move::kToBytes;
  }
  __device__ __forceinline__ u32 scale() const { return side; }
  static __device__ __forceinline__ u32 scales(const DenseStoreJob&) { return 2; }
  static __device__ __forceinline__ float scale_at(const DenseStoreJob& job, u32 at) {
    return job.scales[at] ? *job.scales[at] : job.scale[at];
  }
};

// Any number of runs, and pages.
template <class Move>
struct Unit<Move, StoreJob> {
  const StoreJob& job;
  const StoreSide& side;
  u32 run, place;

  __device__ __forceinline__ Unit(const StoreJob& all, u32 unit)
      : job(all), side(all.sides[unit >= units_of_side(all, 0)]), run(0) {
    const u32 first = units_of_side(job, 0);
    place = unit >= first ? unit - first : unit;
    if (side.segments > 1) {
      const u32 of_run = units_of_run(job, side);
      run = place / of_run;
      place -= run * of_run;
    }
  }
  static __device__ __forceinline__ u32 units_of_run(const StoreJob& job, const StoreSide& side) {
    return static_cast<u32>(side.segment_elements) * job.element_bytes / Move::kFromBytes;
  }
  static __device__ __forceinline__ u32 units_of_side(const StoreJob& job, int side) {
    return units_of_run(job, job.sides[side]) * static_cast<u32>(job.sides[side].segments);
  }
  static __device__ __forceinline__ u32 units_of_token(const StoreJob& job) {
    return units_of_side(job, 0) + units_of_side(job, 1);
  }
  __device__ __forceinline__ const u8* from(i64 token) const {
    return side.from + token * side.from_row + run * side.from_segment + place * Move::kFromBytes;
  }
  __device__ __forceinline__ u8* to(i64 slot) const {
    const i64 page = job.page_shift >= 0 ? slot >> job.page_shift : slot / job.page_size;
    return side.to + page * side.to_page + (slot - page * job.page_size) * side.to_slot +
           run * side.to_segment + place * Move::kToBytes;
  }
  // K's first, then V's; one of a side, or one for each of its runs.
  static __device__ __forceinline__ u32 scales_of(const StoreSide& side) {
    return side.scales_step ? static_cast<u32>(side.segments) : 1;
  }
  static __device__ __forceinline__ u32 scales(const StoreJob& job) {
    return scales_of(job.sides[0]) + scales_of(job.sides[1]);
  }
  static __device__ __forceinline__ float scale_at(const StoreJob& job, u32 at) {
    const u32 first = scales_of(job.sides[0]);
    const StoreSide& side = job.sides[at >= first];
    return side.scales ? side.scales[at >= first ? at - first : at] : side.scale;
  }
  __device__ __forceinline__ u32 scale() const {
    return run * side.scales_step + (&side == &job.sides[1] ? scales_of(job.sides[0]) : 0);
  }
};

// The reciprocals of the scales, taken once for a block.
template <class Move, class Job>
struct Inverses {
  float of[kMaxScales];

  __device__ __forceinline__ void fill(const Job& job) {
    if constexpr (Move::kScales) {
      for (u32 at = threadIdx.x; at < Unit<Move, Job>::scales(job); at += kStoreThreads)
        of[at] = 1.f / Unit<Move, Job>::scale_at(job, at);
      __syncthreads();
    }
  }
};

// The units that a thread has under way.
template <class Move, class Job, int kLanes, int kLoads>
struct Batch {
  typename Move::Value value[kLoads];

  __device__ __forceinline__ void load(const Job& job, i64 token, u32 first, u32 units) {
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const u32 unit = first + k * kLanes;
      if (unit < units) value[k] = Move::load(Unit<Move, Job>(job, unit).from(token));
    }
  }
  __device__ __forceinline__ void store(const Job& job, const float* inverses, i64 slot, u32 first,
                                        u32 units) const {
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const u32 unit = first + k * kLanes;
      if (unit >= units) continue;
      const Unit<Move, Job> at(job, unit);
      Move::store(at.to(slot), value[k], Move::kScales ? inverses[at.scale()] : 1.f);
    }
  }
};

template <class Job>
__device__ __forceinline__ bool is_reserved(const Job& job, i64 slot) {
  for (int i = 0; i < job.num_reserved; ++i)
    if (slot == job.reserved[i]) return true;
  return false;
}

// Blocks of a multiprocessor: what registers allow, as short rows want many under way.
template <bool kCompares>
constexpr int kBlocks = kCompares ? 3 : 6;

template <class Move, class Job, int kLanes, int kLoads, bool kCompares>
__global__ void __launch_bounds__(kStoreThreads, kBlocks<kCompares>)
    store(const __grid_constant__ Job job) {
  constexpr int kGroups = kStoreThreads / kLanes;
  let_next_start();
  wait_for_stream();
  const i64 first = i64{blockIdx.x} * kGroups;
  const u32 group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const i64 token = first + group;
  const bool mine = token < job.tokens;
  const u32 units = Unit<Move, Job>::units_of_token(job);
  Batch<Move, Job, kLanes, kLoads> batch;
  i64 slot = -1;
  if (mine) {
    batch.load(job, token, lane, units);  // first: what follows may wait for the slot
    slot = slot_of(job, token);
  }
  __shared__ Inverses<Move, Job> inverses;
  inverses.fill(job);
  bool yields = false;
  if constexpr (kCompares) {
    if (kGroups == 1 && job.tokens <= kStoreThreads) {
      yields = gives_way(job, token, slot);
    } else if (may_give_way<kGroups>(job, first, token, slot)) {
      yields = gave_way<kGroups>(job, first) >> group & 1;
    }
  }
  if (slot < 0 || is_reserved(job, slot)) return;
  if (slot >= job.num_slots) {
    if (lane == 0) atomicAdd(job.counter, 1ull);
    return;
  }
  if (yields) return;
  if (job.claims && job.claims[slot] != static_cast<u32>(token)) return;
  batch.store(job, inverses.of, slot, lane, units);
  for (u32 u = lane + kLanes * kLoads; u < units; u += kLanes * kLoads) {
    batch.load(job, token, u, units);
    batch.store(job, inverses.of, slot, u, units);
  }
}

// Of tokens with one slot the last to get here stays.
template <class Job>
__global__ void __launch_bounds__(kStoreThreads) claim(const __grid_constant__ Job job) {
  let_next_start();
  wait_for_stream();
  const i64 token = i64{blockIdx.x} * kStoreThreads + threadIdx.x;
  if (token >= job.tokens) return;
  const i64 slot = slot_of(job, token);
  if (slot >= 0 && slot < job.num_slots) job.claims[slot] = static_cast<u32>(token);
}

}  // namespace commlib::kernels
