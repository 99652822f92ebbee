// Scatter of K and V on the CPU: find the places of a block of slots | move K's rows | move V's.
// One thread, so that the last of two rows for one slot stays, in K and in V; and ranks share the
// host's cores.
#include <algorithm>
#include <cstring>

#include "commlib/check.h"
#include "commlib/reduce.h"
#include "kernels/store/host.h"

namespace commlib::kernels {
namespace {

constexpr i64 kBlock = 256;  // rows: 6 KiB on the stack

// A row that is written, and where it goes.
struct Target {
  i64 token, page, place;
};

bool is_reserved(const StoreJob& job, i64 slot) {
  for (int i = 0; i < job.num_reserved; ++i) {
    if (slot == job.reserved[i]) return true;
  }
  return false;
}

// Fills `targets` with the rows from `first` to `last` that are written; returns how many.
template <class Slot>
i64 find(const StoreJob& job, i64 first, i64 last, Target* targets, i64* beyond) {
  const Slot* slots = static_cast<const Slot*>(job.slots);
  i64 count = 0;
  for (i64 token = first; token < last; ++token) {
    const i64 slot = slots[token * job.slots_step];
    if (slot < 0 || is_reserved(job, slot)) continue;
    if (slot >= job.num_slots) {
      ++*beyond;
      continue;
    }
    const i64 page = job.page_shift >= 0 ? slot >> job.page_shift : slot / job.page_size;
    targets[count++] = {token, page, slot - page * job.page_size};
  }
  return count;
}

u8* place_of(const StoreSide& side, const Target& target) {
  return side.to + target.page * side.to_page + target.place * side.to_slot;
}

// Fetches what the next row is written to: no hardware guesses it from the slots. A run's first KiB
// is enough for it to guess the rest. Worth a tenth to a fourth of the time beyond the L2 cache.
void fetch(const u8* run, size_t bytes) {
  for (size_t at = 0; at < bytes && at < 1024; at += 64) __builtin_prefetch(run + at, 1);
}

template <class Move>
void each_run(const StoreSide& side, const Target* targets, i64 count, size_t bytes, Move move) {
  for (i64 n = 0; n < count; ++n) {
    const u8* from = side.from + targets[n].token * side.from_row;
    u8* to = place_of(side, targets[n]);
    const u8* next = place_of(side, targets[std::min(n + 1, count - 1)]);
    for (i64 i = 0; i < side.segments; ++i) {
      fetch(next + i * side.to_segment, bytes);
      move(to + i * side.to_segment, from + i * side.from_segment, i);
    }
  }
}

// Runs of a size known here are moved by a few instructions; kBytes 0 stands for a size that is
// not.
template <size_t kBytes>
void copy_runs(const StoreSide& side, const Target* targets, i64 count, size_t bytes) {
  if constexpr (kBytes > 0) bytes = kBytes;
  each_run(side, targets, count, bytes,
           [bytes](u8* to, const u8* from, i64) { std::memcpy(to, from, bytes); });
}

void copy(const StoreSide& side, const Target* targets, i64 count, size_t bytes) {
  switch (bytes) {
    case 16:
      return copy_runs<16>(side, targets, count, bytes);
    case 32:
      return copy_runs<32>(side, targets, count, bytes);
    case 64:
      return copy_runs<64>(side, targets, count, bytes);
    case 128:
      return copy_runs<128>(side, targets, count, bytes);
    default:
      return copy_runs<0>(side, targets, count, bytes);
  }
}

void narrow(const StoreSide& side, const Target* targets, i64 count, NarrowFn convert) {
  const auto elements = static_cast<size_t>(side.segment_elements);
  each_run(side, targets, count, elements, [&](u8* to, const u8* from, i64 i) {
    const float scale = side.scales ? side.scales[i * side.scales_step] : side.scale;
    convert(to, from, elements, 1.0f / scale);
  });
}

NarrowFn conversion(StoreFrom from, StoreAs as) {
  static const ReduceTable* const table = reduce_table(nullptr);
  if (!table) fail("Unsupported", "this CPU does not have x86-64-v2, which conversions need");
  const auto& to = as == StoreAs::e4m3 ? table->to_e4m3 : table->to_e5m2;
  const DType dtype = from == StoreFrom::f32   ? DType::f32
                      : from == StoreFrom::f16 ? DType::f16
                                               : DType::bf16;
  return to[static_cast<int>(dtype)];
}

}  // namespace

i64 store(const StoreJob& job, StoreFrom from, StoreAs as) {
  const NarrowFn convert = as == StoreAs::copy ? nullptr : conversion(from, as);
  Target targets[kBlock];
  i64 beyond = 0;
  for (i64 first = 0; first < job.tokens; first += kBlock) {
    const i64 last = std::min(first + kBlock, job.tokens);
    const i64 count = job.wide ? find<int64_t>(job, first, last, targets, &beyond)
                               : find<int32_t>(job, first, last, targets, &beyond);
    for (const StoreSide* side = job.sides; side != job.sides + job.num_sides; ++side) {
      if (side->segment_elements == 0) continue;  // an empty row has no memory to point to
      if (convert) {
        narrow(*side, targets, count, convert);
      } else {
        copy(*side, targets, count,
             static_cast<size_t>(side->segment_elements) * job.element_bytes);
      }
    }
  }
  return beyond;
}

}  // namespace commlib::kernels
