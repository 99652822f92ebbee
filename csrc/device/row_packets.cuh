// Rows that come in packets without flags: each thread's words of a row, in one or two phases.
//
//   one   a block pushes a row to all | takes everyone's | sums them in rank order
//   two   each warp's part of a row has an owner: push it there | the owner sums it in rank order
//         and pushes the sum to all
//
// Then each rank runs the epilogue on the row. A block owns every gridDim-th row, from that of its
// number on. The blocks of a cluster do so together: each sends and polls less, which counts where
// rows are few.
//
// Each warp is a channel, and its packets carry what its threads hold (device/row.cuh): step k of a
// row is the k-th pair of each lane. Steps in which no lane of a warp has a pair are left out; the
// width says so on every rank alike.
//
// The rule of channels (device/packet.cuh): number q is sent when all up to q - kAhead are taken.
// The first kAhead steps of a row are sent when all of the row before are taken, if registers allow
// ahead of that row's epilogue; step s when all up to step s - kAhead are. In two phases a part and
// its sum have one number: a rank that has taken it knows that all ranks had sent their parts.
//
// A warp whose wait fails tells the block before anything of the row is written, and all leave; a
// block of a cluster stays, and neither waits nor writes any more: the others need its memory.
#pragma once

#include "device/oneshot.cuh"
#include "device/row.cuh"

namespace commlib {

template <class T, int N, int kPairs, int kPhases, int kBlocks = 1>
class PacketRows : public RowBlock<T, kPairs> {
  using Base = RowBlock<T, kPairs>;
  using Step = Words<WholeLamport>;
  // Steps that are looked for at once: as many packets of all peers as registers allow.
  static constexpr int kAtOnce = N > 4 ? 1 : N == 4 || kPairs > 4 ? 2 : N == 3 ? 3 : 4;
  static_assert(kAtOnce <= kAhead, "more are not sent");
  // Whether a row's first steps go ahead of the epilogue of the row before.
  static constexpr bool kGoesAhead = kPairs <= 4;
  static constexpr u32 kThreads = kRowThreads / kBlocks;

 public:
  __device__ __forceinline__ PacketRows(const Job& job, const Rows& rows, RowBoard* board,
                                        bool aligned)
      : Base(job, rows, board, aligned, kBlocks),
        channel_(job, lets_next_start(gridDim.x, kThreads)) {
    if (kBlocks > 1) {
      if (threadIdx.x < 2) barrier_init(&board->came[threadIdx.x]);
      arrive_at_cluster();
    }
#pragma unroll
    for (int k = 0; k < kPairs; ++k) steps_ += this->warp_has_pair(k);
  }

  template <class Epilogue>
  __device__ __forceinline__ void run() {
    const u64 rows = this->rows_.rows;
    u64 row = blockIdx.x / kBlocks;
    if constexpr (kGoesAhead) {
      const u8* from = own_words(row);
      known(from);
      const auto to = channel_.destinations();
      channel_.begin();
      if (row < rows)
        send_steps<0, kAhead>(row, from, [&](int p, int i, const Step& step, bool has) {
          channel_.send(p, i, step, to, has);
        });
    } else {
      channel_.begin();
    }
    if (kBlocks > 1) wait_for_cluster();  // all its blocks are there
    if (row >= rows) return;
#pragma unroll 1
    for (; row < rows; row += gridDim.x / kBlocks) {
      if (!kGoesAhead) send<0, kAhead>(row);
      this->begin(row);
      Epilogue::run(*this);
    }
    if (!this->failed_) channel_.close(next_number_);
  }

  __device__ __forceinline__ typename Base::Row take() {
    Pair total[kPairs] = {};
    const bool failed = !this->failed_ && steps_ > 0 && !take_from<0>(total);
    if (kBlocks == 1)
      leave_if(failed);
    else
      this->failed_ |= any_of_row(failed, kThreads);
    next_number_ += steps_;
    const u64 next = this->row_ + gridDim.x / kBlocks;
    if (kGoesAhead && !this->failed_ && next < this->rows_.rows) send<0, kAhead>(next);
    return this->unpack(total);
  }

 private:
  // Who sums this warp's part of a row, in two phases.
  __device__ __forceinline__ int owner(u64 row) const {
    return static_cast<int>((this->thread() / 32 + row) % N);
  }
  __device__ __forceinline__ bool is_summed_here(u64 row) const {
    return kPhases == 1 || owner(row) == this->job_.rank;
  }

  // Where this thread's words of this rank's row begin.
  __device__ __forceinline__ const u8* own_words(u64 row) const {
    return this->own_row(row) + this->template place<16>(0);
  }
  // Those of steps from kFrom on.
  template <int kFrom, int kCount>
  __device__ __forceinline__ void load_steps(const u8* from, Step (&steps)[kCount]) const {
    if (this->aligned_ || aligned_for<4>(from)) {
      load_steps_at<true, kFrom>(from, steps);
    } else {
      load_steps_at<false, kFrom>(from, steps);
    }
  }
  template <bool kAligned, int kFrom, int kCount>
  __device__ __forceinline__ void load_steps_at(const u8* from, Step (&steps)[kCount]) const {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      u32 w[4] = {};
      if (this->has_pair(kFrom + c)) load_at<kAligned>(from + kRowThreads * 16 * (kFrom + c), w);
      steps[c] = {{u64{w[1]} << 32 | w[0], u64{w[3]} << 32 | w[2]}};
    }
  }

  template <int kFrom, int kTo>
  __device__ __forceinline__ void send(u64 row) {
    send_steps<kFrom, kTo>(row, own_words(row), [&](int p, int i, const Step& step, bool has) {
      channel_.send(p, i, step, has);
    });
  }
  // send_one(p, i, step, has): to the rank p places after this one.
  template <int kFrom, int kTo, class Send>
  __device__ __forceinline__ void send_steps(u64 row, const u8* from, Send send_one) {
    constexpr int kEnd = kTo < kPairs ? kTo : kPairs, kCount = kEnd > kFrom ? kEnd - kFrom : 0;
    if constexpr (kCount > 0) {
      if (kPhases == 2 && is_summed_here(row)) return;
      Step mine[kCount];
      load_steps<kFrom>(from, mine);
      if (kFrom == 0) channel_.use_number();
      mark(Phase::publish);
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        const bool has = this->has_pair(kFrom + c);
#pragma unroll
        for (int p = 1; p < N; ++p)
          if (takes_part(kFrom + c) && (kPhases == 1 || channel_.after(p) == owner(row)))
            send_one(p, next_number_ + kFrom + c, mine[c], has);
      }
    }
  }
  // In a warp's first step also lanes without a pair: they may say what the call is.
  __device__ __forceinline__ bool takes_part(int step) const {
    return step == 0 ? this->warp_has_pair(0) : this->has_pair(step);
  }

  // The sums of the steps from kFrom on; those that are not sent yet go when it is their turn.
  // False: the call is over.
  template <int kFrom>
  __device__ __forceinline__ bool take_from(Pair (&total)[kPairs]) {
    constexpr int kTo = kFrom + kAtOnce < kPairs ? kFrom + kAtOnce : kPairs;
    const bool here = is_summed_here(this->row_);
    if (here && !sum_here<kFrom, kTo>(total)) return false;
    if (!here && !take_sums<kFrom, kTo>(total)) return false;
    send<kFrom + kAhead, kTo + kAhead>(this->row_);
    if constexpr (kTo < kPairs) {
      return take_from<kTo>(total);
    } else {
      return true;
    }
  }
  template <int kFrom, int kTo>
  __device__ __forceinline__ bool sum_here(Pair (&total)[kPairs]) const {
    Step mine[kTo - kFrom], received[kTo - kFrom][kPeers<N>] = {};
    load_steps<kFrom>(own_words(this->row_), mine);
    if (!receive<kFrom>(received, 0)) return false;
#pragma unroll
    for (int step = kFrom; step < kTo; ++step) {
      const auto sum = fold_words<T, Sum, WholeLamport, N>(
          mine[step - kFrom], received[step - kFrom], this->job_.rank, 0);
      if (kPhases == 2 && takes_part(step))
        channel_.send_all(next_number_ + step, sum, this->has_pair(step));
      total[step] = {sum.w[0], sum.w[1]};
    }
    return true;
  }
  template <int kFrom, int kTo>
  __device__ __forceinline__ bool take_sums(Pair (&total)[kPairs]) const {
    Step sums[kTo - kFrom][1] = {};
    const int owner = this->owner(this->row_);
    if (!receive<kFrom>(sums, owner - (owner > this->job_.rank))) return false;
#pragma unroll
    for (int step = kFrom; step < kTo; ++step)
      total[step] = {sums[step - kFrom][0].w[0], sums[step - kFrom][0].w[1]};
    return true;
  }
  template <int kFrom, int kCount, int kSenders>
  __device__ __forceinline__ bool receive(Step (&steps)[kCount][kSenders], int first) const {
    const auto comes = [&](int c, int) { return this->has_pair(kFrom + c); };
    if (!channel_.receive(next_number_ + kFrom, steps, comes, first)) return false;
    channel_.let_next();
    mark(Phase::reduce);
    return true;
  }

  Channel<WholeLamport, N, (N < 3 && kPairs < 4)> channel_;
  int steps_ = 0;        // of this warp in a row
  int next_number_ = 0;  // of the row's first step, in this call
};

}  // namespace commlib
