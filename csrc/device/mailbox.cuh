// Short messages between two ranks: packets into a mailbox at the receiver.
//
// A mailbox leads from a block to the same block of a peer: kMailSlots slots in the peer's arena
// that take turns. A packet is 8 bytes of data and a flag: the number of the message, which both
// ranks count, and below it the signature of the call. The receiver posts how many it has taken: a
// sender runs ahead until the slots are full. A long message goes through pipes (device/pipe.cuh),
// and its receiver notices packets, as that of a short one notices tiles.
#pragma once

#include "device/tiles.cuh"

namespace commlib {

template <int N>
__device__ __forceinline__ PipeBlock* pipe_block(const Job& job, int rank, u64 set, u64 block) {
  return reinterpret_cast<PipeBlock*>(job.arena[rank] + places(N).pipe_blocks) + set * kPipeBlocks +
         block;
}

// Of what one rank moves to another: both must mean the same bytes.
__device__ __forceinline__ u32 signature_of(const Job& job, u64 bytes) {
  const u32 mixed = static_cast<u32>(bytes * 0x9e3779b97f4a7c15ull >> 48);
  return job.signature ^ (mixed & ((1u << kSignatureBits) - 1));
}

template <int N>
class Mailboxes {
 public:
  __device__ explicit Mailboxes(const Job& job) : job_(job) {}

  // This block's part of a message. False: the call is over.
  __device__ bool send(int peer, u64 bytes, u64 max_blocks) const {
    const Part part(bytes, max_blocks);
    if (part.words <= 0) return true;
    const u64 number = block_of(job_.rank)->sent[peer] + 1;
    const u64* posted = &block_of(job_.rank)->posted[peer];
    bool over = false;
    Patience patience;
    for (u64 taken = ld_relaxed_sys(posted); taken + kMailSlots < number;
         taken = ld_relaxed_sys(posted)) {
      over = patience.runs_out() && patience.gives_up(job_, peer, taken, taken);
      if (over) break;
    }
    const Span x(job_.in, bytes);
    for (u32 begin = threadIdx.x; begin < part.words && !over; begin += kBatch * blockDim.x) {
      u64 words[kBatch];
#pragma unroll
      for (u32 b = 0; b < kBatch; ++b)
        words[b] = x.word_here<false>(part.first + begin + b * blockDim.x);
#pragma unroll
      for (u32 b = 0; b < kBatch; ++b)
        if (begin + b * blockDim.x < part.words)
          st_relaxed_sys(packet(peer, job_.rank, number, begin + b * blockDim.x),
                         Pair{words[b], flag_of(number, bytes)});
    }
    over = __syncthreads_or(over);
    if (threadIdx.x == 0 && !over) block_of(job_.rank)->sent[peer] = number;
    return !over;
  }

  __device__ void take(int peer, u64 bytes, u64 max_blocks) const {
    const Part part(bytes, max_blocks);
    if (part.words <= 0) return;
    const u64 number = block_of(job_.rank)->taken[peer] + 1;
    const u64 flag = flag_of(number, bytes);
    const Span out(job_.out, bytes);
    bool over = false;
    for (u32 begin = threadIdx.x; begin < part.words && !over; begin += kBatch * blockDim.x) {
      const auto is_there = [&](u32 b) { return begin + b * blockDim.x < part.words; };
      Pair got[kBatch];
      Patience patience;
      while (!over) {
        u64 seen = flag;
#pragma unroll
        for (u32 b = 0; b < kBatch; ++b)
          if (is_there(b))
            got[b] = ld_relaxed_sys(packet(job_.rank, peer, number, begin + b * blockDim.x));
#pragma unroll
        for (u32 b = 0; b < kBatch; ++b)
          if (is_there(b) && got[b].b != flag) seen = got[b].b;
        if (seen == flag) break;
        if (!patience.runs_out()) continue;
        // Tiles that come behind this message are seen only with its packets.
        const bool longer =
            blockIdx.x == 0 && are_tiles_there(peer) &&
            ld_relaxed_sys(packet(job_.rank, peer, number, begin)).b >> kSignatureBits != number;
        over = patience.gives_up(job_, peer, longer ? flag ^ 1 : seen, flag);
      }
#pragma unroll
      for (u32 b = 0; b < kBatch; ++b)
        if (is_there(b) && !over)
          out.set_word_here<false>(part.first + begin + b * blockDim.x, got[b].a);
    }
    over = __syncthreads_or(over);
    if (threadIdx.x > 0 || over) return;
    block_of(job_.rank)->taken[peer] = number;
    st_relaxed_sys(&block_of(peer)->posted[job_.rank], number);  // what was taken has come
  }

  // Whether packets of a message that is not taken yet are here.
  __device__ bool has_come(int peer) const {
    const u64 number = block_of(job_.rank)->taken[peer] + 1;
    const u8* flag = packet(job_.rank, peer, number, 0) + sizeof(u64);
    return ld_acquire_sys(reinterpret_cast<const u64*>(flag)) >> kSignatureBits == number;
  }

 private:
  static constexpr u32 kBatch = 3;  // packets of a thread that are under way at once

  // What this block moves of a message, in words.
  struct Part {
    u64 first;
    u32 words;

    __device__ Part(u64 bytes, u64 max_blocks) {
      const MailShare share(bytes, max_blocks);
      const u64 all = (bytes + 7) / 8;
      first = blockIdx.x * share.packets;
      const u64 end = first + share.packets < all ? first + share.packets : all;
      words = blockIdx.x < share.blocks && first < end ? static_cast<u32>(end - first) : 0;
    }
  };

  __device__ MailBlock* block_of(int rank) const {
    return reinterpret_cast<MailBlock*>(job_.arena[rank] + places(N).mail_blocks) + blockIdx.x;
  }
  __device__ u8* packet(int at, int source, u64 number, u32 i) const {
    const u64 mailbox = source * kPipeBlocks + blockIdx.x;
    const u64 slot = mailbox * kMailSlots + number % kMailSlots;
    return job_.arena[at] + places(N).mail + (slot * kMailPackets + i) * sizeof(Pair);
  }
  __device__ u64 flag_of(u64 number, u64 bytes) const {
    return number << kSignatureBits | signature_of(job_, bytes);
  }
  __device__ bool are_tiles_there(int peer) const {
    const PipeBlock* pipe = pipe_block<N>(job_, job_.rank, kMessages, 0);
    return ld_acquire_sys(&pipe->posted[kWritten][kScatter][peer]) !=
           pipe->before[kTaken][kScatter][peer];
  }

  const Job& job_;
};

}  // namespace commlib
