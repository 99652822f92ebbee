// Rows that come in packets: a block pushes a row to all | takes everyone's | sums them in rank
// order | runs the epilogue. It owns every gridDim-th row, from that of its number on. The blocks
// of a cluster do so together: each sends and polls less, which counts where rows are few.
//
// Each warp is a channel, and its packets carry what its threads hold (device/row.cuh): step k of a
// row is the k-th pair of each lane, but the last of each eight lanes has the line's flag in place
// of its second word. Those words follow in one step more, the last of the row: the one that step k
// lacks in its line j is the first word of lane 4 k + j. So only these words change threads, by a
// shuffle of the sums, and rows need no shared memory. Steps in which no lane of a warp has a pair
// are left out; the width says so on every rank alike.
//
// The rule of channels (device/packet.cuh): number q is sent when all up to q - kAhead are taken.
// The first kAhead steps of a row are sent when all of the row before are taken, if registers allow
// ahead of that row's epilogue; step s when all up to step s - kAhead are. The numbers of a row are
// those of its steps without what is left out: before the last step alone, so its number is at most
// its place, and the rule holds for it all the more.
//
// A warp whose wait fails tells the block before anything of the row is written, and all leave; a
// block of a cluster stays, and neither waits nor writes any more: the others need its memory.
#pragma once

#include "device/oneshot.cuh"
#include "device/row.cuh"

namespace commlib {

template <class T, int N, int kPairs, int kBlocks = 1>
class PacketRows : public RowBlock<T, kPairs> {
  using Base = RowBlock<T, kPairs>;
  static constexpr int kSteps = kPairs + 1;
  static constexpr u32 kLastLanes = kPairs > 2 ? 4 * kPairs : 8;  // of the last step: whole lines
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
        channel_(job, lets_next_start(gridDim.x, kThreads)),
        lane_(threadIdx.x & 31) {
    if (kBlocks > 1) {
      if (threadIdx.x < 2) barrier_init(&board->came[threadIdx.x]);
      arrive_at_cluster();
    }
#pragma unroll
    for (int k = 0; k < kPairs; ++k) pair_steps_ += this->warp_has_pair(k);
  }

  template <class Epilogue>
  __device__ __forceinline__ void run() {
    const u64 rows = this->rows_.rows;
    u64 row = blockIdx.x / kBlocks;
    if (kGoesAhead && row < rows) send<0, kAhead>(row);
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
    Pair total[kSteps] = {};
    const bool failed = !this->failed_ && pair_steps_ > 0 && !take_from<0>(total);
    if (kBlocks == 1)
      leave_if(failed);
    else
      this->failed_ |= any_of_row(failed, kThreads);
    next_number_ += pair_steps_ + (pair_steps_ > 0);
    const u64 next = this->row_ + gridDim.x / kBlocks;
    if (kGoesAhead && !this->failed_ && next < this->rows_.rows) send<0, kAhead>(next);
    Pair sums[kPairs];
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const u64 second = __shfl_sync(kAll, total[kPairs].a, (4 * k + lane_ / 8) & 31);
      sums[k] = {total[k].a, Ll128::last(lane_) ? second : total[k].b};
    }
    return this->unpack(sums);
  }

 private:
  // A step is a pair's, or the last: whether it goes at all, and in this lane; its number.
  __device__ __forceinline__ bool goes(int step) const {
    return step < kPairs ? step < pair_steps_ : pair_steps_ > 0;
  }
  __device__ __forceinline__ bool has(int step) const {
    return goes(step) && (step < kPairs || lane_ < kLastLanes);
  }
  __device__ __forceinline__ int number_of(int step) const {
    return next_number_ + (step < kPairs ? step : pair_steps_);
  }
  // This lane's words of steps from kFrom on, of this rank's row.
  template <int kFrom, int kCount>
  __device__ __forceinline__ void load_steps(u64 row, Words<Ll128> (&words)[kCount]) const {
    const u8* from = this->own_row(row);
    if (this->aligned_ || aligned_for<4>(from)) {
      load_steps_at<true, kFrom>(from, words);
    } else {
      load_steps_at<false, kFrom>(from, words);
    }
  }
  template <bool kAligned, int kFrom, int kCount>
  __device__ __forceinline__ void load_steps_at(const u8* row,
                                                Words<Ll128> (&words)[kCount]) const {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      u32 w[4] = {};
      if (kFrom + c < kPairs) {
        if (this->has_pair(kFrom + c))
          load_at<kAligned>(row + this->template place<16>(kFrom + c), w);
      } else {
        // The pair whose second word lane 4 k + j brings.
        const u32 pair = this->pair(lane_ / 4) - lane_ + 8 * (lane_ % 4) + 7;
        u32 second[2] = {};
        if (lane_ < 4 * kPairs && this->is_pair(pair))
          load_at<kAligned>(row + 16 * u64{pair} + 8, second);
        w[0] = second[0], w[1] = second[1];
      }
      words[c] = {{u64{w[1]} << 32 | w[0], u64{w[3]} << 32 | w[2]}};
    }
  }

  template <int kFrom, int kTo>
  __device__ __forceinline__ void send(u64 row) const {
    constexpr int kEnd = kTo < kSteps ? kTo : kSteps, kCount = kEnd > kFrom ? kEnd - kFrom : 0;
    if constexpr (kCount > 0) {
      Words<Ll128> mine[kCount];
      load_steps<kFrom>(row, mine);
#pragma unroll
      for (int c = 0; c < kCount; ++c)
        if (has(kFrom + c)) channel_.send_all(number_of(kFrom + c), mine[c]);
    }
  }

  // The sums of the steps from kFrom on; those that are not sent yet go when it is their turn.
  // False: the call is over.
  template <int kFrom>
  __device__ __forceinline__ bool take_from(Pair (&total)[kSteps]) const {
    constexpr int kTo = kFrom + kAtOnce < kSteps ? kFrom + kAtOnce : kSteps;
    Words<Ll128> mine[kTo - kFrom];
    load_steps<kFrom>(this->row_, mine);
    Pair got[kTo - kFrom][kPeers<N>] = {};
    if (!receive<kFrom>(got)) return false;
#pragma unroll
    for (int step = kFrom; step < kTo; ++step) {
      Words<Ll128> theirs[kPeers<N>];
#pragma unroll
      for (int p = 0; p < N - 1; ++p) Ll128::unpack(got[step - kFrom][p], theirs[p].w);
      const auto sum = fold_words<T, Sum, Ll128, N>(mine[step - kFrom], theirs, this->job_.rank, 0);
      total[step] = {sum.w[0], sum.w[1]};
    }
    send<kFrom + kAhead, kTo + kAhead>(this->row_);
    if constexpr (kTo < kSteps) {
      return take_from<kTo>(total);
    } else {
      return true;
    }
  }

  template <int kFrom, int kCount>
  __device__ __forceinline__ bool receive(Pair (&got)[kCount][kPeers<N>]) const {
    mark(Phase::wait);
    Patience patience;
    while (true) {
#pragma unroll
      for (int c = 0; c < kCount; ++c)
#pragma unroll
        for (int p = 0; p < N - 1; ++p)
          if (has(kFrom + c)) got[c][p] = channel_.look(number_of(kFrom + c), p);
      bool ready = true;
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        const u64 expected = channel_.flag_of(number_of(kFrom + c));
#pragma unroll
        for (int p = 0; p < N - 1; ++p)
          ready &= !has(kFrom + c) || Ll128::ready(got[c][p], expected, lane_);
      }
      if (__all_sync(kAll, ready)) {
        if (!this->job_.first && lets_next_start(gridDim.x, kThreads)) let_next_start();
        return mark(Phase::reduce), true;
      }
      if (patience.runs_out() && gives_up<kFrom>(patience, got)) return false;
    }
  }
  // Asks about each peer's first packet that is not there.
  template <int kFrom, int kCount>
  __device__ __forceinline__ bool gives_up(Patience& patience,
                                           const Pair (&got)[kCount][kPeers<N>]) const {
    bool leave = false;
#pragma unroll
    for (int p = 0; p < N - 1; ++p) {
      u64 seen = 0, hoped = 0;
#pragma unroll
      for (int c = kCount - 1; c >= 0; --c) {
        const u64 flag = Ll128::flag_of(got[c][p], lane_);
        const u64 expected = channel_.flag_of(number_of(kFrom + c));
        if (has(kFrom + c) && flag != expected) seen = flag, hoped = expected;
      }
      if (seen != hoped) leave |= patience.gives_up(this->job_, channel_.peer(p), seen, hoped);
    }
    return __any_sync(kAll, leave);
  }

  Channel<Ll128, N> channel_;
  const u32 lane_;
  int pair_steps_ = 0;   // of this warp in a row
  int next_number_ = 0;  // of the row's first step, in this call
};

}  // namespace commlib
