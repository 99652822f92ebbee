// What each rank sends and takes in a collective that moves blocks, or reduces one for each rank or
// for the root.
#pragma once

#include <algorithm>

#include "commlib/call.h"
#include "commlib/job.h"

namespace commlib::nccl {

inline Moves moves_of(const Call& call, int rank, int world) {
  Moves m{};
  const u64 block = call.bytes(), element = call.element();
  u64 in_at = 0, out_at = 0;
  m.longest = block;
  for (int r = 0; r < world; ++r) {
    const bool mine = r == rank, root = rank == call.root;
    switch (call.op) {
      case Op::all_to_all:
        m.send_at[r] = m.take_at[r] = r * block;
        m.send_bytes[r] = m.take_bytes[r] = block;
        break;
      case Op::all_gather:
        m.take_at[r] = r * block;
        m.send_bytes[r] = m.take_bytes[r] = block;
        break;
      case Op::broadcast:
        m.send_bytes[r] = root && !mine ? block : 0;
        m.take_bytes[r] = !root && r == call.root ? block : 0;
        break;
      case Op::gather:
        m.send_bytes[r] = r == call.root ? block : 0;
        m.take_at[r] = r * block;
        m.take_bytes[r] = root ? block : 0;
        break;
      case Op::scatter:
        m.send_at[r] = r * block;
        m.send_bytes[r] = root ? block : 0;
        m.take_bytes[r] = r == call.root ? block : 0;
        break;
      case Op::all_gatherv: {
        const u64 bytes = static_cast<u64>(call.in_counts[r]) * element;
        m.send_bytes[r] = static_cast<u64>(call.in_counts[rank]) * element;
        m.take_at[r] = out_at;
        m.take_bytes[r] = bytes;
        out_at += bytes;
        m.longest = r == 0 || bytes > m.longest ? bytes : m.longest;
        break;
      }
      case Op::reduce_scatter:
        m.send_at[r] = r * block;
        m.send_bytes[r] = m.take_bytes[r] = block;
        break;
      case Op::all_to_allv:
        m.send_at[r] = in_at;
        m.send_bytes[r] = static_cast<u64>(call.in_counts[r]) * element;
        m.take_at[r] = out_at;
        m.take_bytes[r] = static_cast<u64>(call.out_counts[r]) * element;
        in_at += m.send_bytes[r];
        out_at += m.take_bytes[r];
        break;
      case Op::send_recv:
        m.send_bytes[r] = call.in && r == call.root ? block : 0;
        m.take_bytes[r] = !call.out || r != call.source ? 0
                          : call.out_counts             ? static_cast<u64>(*call.out_counts)
                                                        : block;
        break;
      case Op::reduce:
        m.send_bytes[r] = r == call.root ? block : 0;
        m.take_bytes[r] = root ? block : 0;
        break;
      case Op::reduce_scatterv: {
        const u64 bytes = static_cast<u64>(call.in_counts[r]) * element;
        m.send_at[r] = in_at;
        m.send_bytes[r] = bytes;
        m.take_bytes[r] = static_cast<u64>(call.in_counts[rank]) * element;
        in_at += bytes;
        m.longest = r == 0 || bytes > m.longest ? bytes : m.longest;
        break;
      }
      default:
        break;
    }
  }
  return m;
}

// Of a call that moves messages; what a rank sends to itself has no packets, however short.
inline u64 longest_message(const Moves& moves, int rank) {
  u64 longest = moves.send_bytes[rank] > 0 ? ~0ull : 0;
  for (int r = 0; r < kMaxPeers; ++r)
    longest = std::max({longest, moves.send_bytes[r], moves.take_bytes[r]});
  return longest;
}

}  // namespace commlib::nccl
