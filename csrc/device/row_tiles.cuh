// Rows that come in tiles (device/tiles.cuh, device/bulk.cuh): a step carries a unit of whole rows,
// as many as the plan wants. The rows of a unit belong to one block, whose movers sum a row, hold
// it (device/row.cuh) and run the epilogue.
//
//   one stage    units are dealt to blocks; every rank sends all of them to all and sums all
//   two stages   units are dealt to ranks, then to blocks: each rank sums its own, sends the sums
//                to all, and runs the epilogue on everyone's rows. What travels is the sum and not
//                y, so what an epilogue reads and writes is the same on all ranks.
//
// 512 movers and not 384 as in other kernels of tiles: they hold the row, and a sum over it has the
// order of that many threads on every path. With the helpers that leaves each 96 registers, too few
// for more than two pairs of words: rows of more than 16 KiB, a tile, go by other algorithms.
//
// The steps and turns are those of all_reduce (csrc/collectives/all_reduce/lsa_*shot.cu), and so is
// the reason why no slot is written before it was read. A unit beyond the last row is empty: its
// step is sent, as 16 bytes that nobody reads, posted and awaited like any other, so what holds
// inside a call holds between calls.
//
// Movers whose wait fails agree and leave before the row is written; the others see `over`.
#pragma once

#include "device/bulk.cuh"
#include "device/row.cuh"

namespace commlib {

static_assert(kRowTileThreads == kRowThreads + kHelperThreads, "movers and helpers");

// Rows of x that lie apart, for the copy engine.
struct RowsAt {
  const u8* data;
  i64 stride_bytes;
  u32 row_bytes;
};
__device__ __forceinline__ void bulk_load(u8* to, const RowsAt& from, u32 bytes, u64* barrier) {
  expect_bytes(bytes, barrier);
  if (bytes <= from.row_bytes || from.stride_bytes == from.row_bytes)
    return bulk_copy(to, from.data, bytes, barrier);
  for (u32 at = 0, row = 0; at < bytes; at += from.row_bytes, ++row)
    bulk_copy(to + at, from.data + row * from.stride_bytes, from.row_bytes, barrier);
}

// Which rows travel in which step of this block.
struct RowTiles {
  const Job& job;
  const Rows& rows;
  u32 row_bytes, unit_rows;
  u32 owners;  // ranks that units are dealt to

  __device__ RowTiles(const Job& of, const Rows& all, u32 bytes, u32 dealt_to)
      : job(of), rows(all), row_bytes(bytes), unit_rows(of.tile_bytes / bytes), owners(dealt_to) {}

  __device__ u32 steps() const {
    const u64 units = (rows.rows + unit_rows - 1) / unit_rows;
    const u64 dealt = (units + owners - 1) / owners;
    return dealt > blockIdx.x ? static_cast<u32>((dealt - blockIdx.x + gridDim.x - 1) / gridDim.x)
                              : 0;
  }
  __device__ __forceinline__ u64 first_row(u32 step, u32 owner) const {
    return ((blockIdx.x + u64{step} * gridDim.x) * owners + owner) * unit_rows;
  }
  __device__ __forceinline__ u32 rows_of(u32 step, u32 owner) const {
    const u64 first = first_row(step, owner);
    if (first >= rows.rows) return 0;
    const u64 left = rows.rows - first;
    return left < unit_rows ? static_cast<u32>(left) : unit_rows;
  }
  __device__ __forceinline__ u32 bytes(u64 step, u32 owner) const {
    const u32 count = rows_of(static_cast<u32>(step), owner);
    return count > 0 ? count * row_bytes : 16;
  }
  __device__ __forceinline__ RowsAt from(u64 step, u32 owner) const {
    const u64 first = first_row(static_cast<u32>(step), owner), row = first < rows.rows ? first : 0;
    return {job.in + static_cast<i64>(row) * rows.in_stride_bytes, rows.in_stride_bytes, row_bytes};
  }
};

// The movers. kByBulk: copy engines push the tiles; else the movers store to the peers.
template <class T, int N, int kPairs, int kStages, bool kByBulk>
class TileRows : public RowBlock<T, kPairs> {
  using Base = RowBlock<T, kPairs>;
  static constexpr int kAtOnce = kByBulk && N <= 4 ? kPairs : 1;
  static constexpr u32 kPushed = kByBulk ? 0 : kDepth;       // steps that pushes are ahead of sums
  static constexpr u32 kSummed = kStages == 2 ? kDepth : 0;  // that sums are ahead of what is taken
  static_assert(kPairs <= 2, "rows of more than a tile take more registers than there are");

 public:
  static constexpr u32 kOwners = kStages == 1 ? 1 : N;

  __device__ __forceinline__ TileRows(const Job& job, const Rows& rows, RowBoard* board,
                                      const TileChannel<N>& channel, const RowTiles& tiles,
                                      const Bulk<N, true>* bulk)
      : Base(job, rows, board, kByBulk), channel_(channel), tiles_(tiles), bulk_(bulk) {}

  // It is brought near while peers are waited for; registers would not do.
  template <class E>
  __device__ __forceinline__ Input<E, T, kPairs, false> input(int field) const {
    const auto late = this->template late_input<E>(field);
    late.bring_near();
    return late;
  }
  template <class Epilogue>
  __device__ __forceinline__ void run(u32 steps) {
#pragma unroll 1
    for (u32 i = 0; i < steps + kPushed + kSummed; ++i) {
      if (!kByBulk && i < steps) push(i);
#pragma unroll 1
      for (source_ = 0; source_ < kOwners; ++source_) {
        const u32 behind = kPushed + (sums() ? 0 : kSummed);
        if (i < behind || i - behind >= steps) continue;
        step_ = i - behind;
        run_unit<Epilogue>();
      }
      if constexpr (kByBulk) bulk_->end_turn(i);
    }
  }

  __device__ __forceinline__ typename Base::Row take() {
    leave_if(!ready());
    Pair sum[kPairs] = {};
    if (sums()) {
      sum_row(sum);
    } else {
      gather_row(sum);
    }
    if (is_last_) give();
    return this->unpack(sum);
  }

 private:
  // Whether this rank sums the unit that is worked on; else it takes another's.
  __device__ __forceinline__ bool sums() const { return source_ == 0; }
  __device__ __forceinline__ u32 owner() const {
    return kStages == 1 ? 0 : (this->job_.rank + source_) % N;
  }

  template <class Epilogue>
  __device__ __forceinline__ void run_unit() {
    const u32 count = tiles_.rows_of(step_, owner());
    if (count == 0) {
      leave_if(!ready());
      give();
    }
#pragma unroll 1
    for (row_of_unit_ = 0; row_of_unit_ < count; ++row_of_unit_) {
      is_last_ = row_of_unit_ + 1 == count;
      this->begin(tiles_.first_row(step_, owner()) + row_of_unit_);
      Epilogue::run(*this);
    }
  }

  // What is summed or taken is here, there is room for the sum, and the sender has read what an
  // epilogue in place writes over: rows that this rank sends.
  __device__ __forceinline__ bool ready() const {
    if (!channel_.await(sums() ? kScatter : kGather, step_)) return false;
    if constexpr (kByBulk) {
      if (kStages == 1 || !sums()) return bulk_->await_loaded(step_);
      return bulk_->await_room(step_);
    }
    return true;
  }
  // All sums of the unit are where its peers' copies come from, or with the peers.
  __device__ __forceinline__ void give() {
    if (kStages == 1 || !sums()) return;
    if constexpr (kByBulk) {
      bulk_->end_result(step_);
    } else {
      channel_.posted(post_++);
    }
  }

  // Where a thread's k-th pair lies in a tile.
  __device__ __forceinline__ u32 place_of(u32 row, int k) const {
    return row * (tiles_.row_bytes / 16) + this->pair(k);
  }
  __device__ __forceinline__ void sum_row(Pair (&sum)[kPairs]) const {
    const int rank = this->job_.rank;
    const u8* own = this->own_row(this->row_);
#pragma unroll
    for (int from = 0; from < kPairs; from += kAtOnce) {
      Pair v[kAtOnce][N] = {};
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b)
#pragma unroll
        for (int r = 0; r < N; ++r) {
          if (!this->has_pair(from + b)) continue;
          const u32 at = place_of(row_of_unit_, from + b);
          v[b][r] = r == rank ? own_pair(own, from + b)
                              : ld_relaxed_sys(channel_.slot(kScatter, rank, r, step_) + at);
        }
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
        u64 low[N], high[N];
#pragma unroll
        for (int r = 0; r < N; ++r) low[r] = v[b][r].a, high[r] = v[b][r].b;
        sum[from + b] = {fold<T, Sum, N>(low, 0), fold<T, Sum, N>(high, 0)};
        if (kStages == 2 && this->has_pair(from + b))
          put_sum(place_of(row_of_unit_, from + b), sum[from + b]);
      }
    }
  }
  // A pair of a sum, for all peers.
  __device__ __forceinline__ void put_sum(u32 at, Pair v) const {
    if constexpr (kByBulk) {
      bulk_->result(step_)[at] = v;
    } else {
#pragma unroll
      for (int p = 1; p < N; ++p)
        channel_.slot(kGather, (this->job_.rank + p) % N, this->job_.rank, step_)[at] = v;
    }
  }
  __device__ __forceinline__ void gather_row(Pair (&sum)[kPairs]) const {
    const Pair* from = channel_.slot(kGather, this->job_.rank, owner(), step_);
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
      if (this->has_pair(k)) sum[k] = ld_relaxed_sys(from + place_of(row_of_unit_, k));
  }
  __device__ __forceinline__ Pair own_pair(const u8* row, int k) const {
    const u8* p = row + this->template place<16>(k);
    if constexpr (kByBulk) {
      return ld_stream(p);
    } else {
      return Span(p, 16).pair(0);
    }
  }

  // Stores this rank's rows of a step to those who sum them.
  __device__ __forceinline__ void push(u32 step) {
#pragma unroll 1
    for (int p = 1; p < N; ++p) {
      const int peer = (this->job_.rank + p) % N;
      const u32 to = kStages == 1 ? 0 : peer, count = tiles_.rows_of(step, to);
      Pair* slot = channel_.slot(kScatter, peer, this->job_.rank, step);
#pragma unroll 1
      for (u32 row = 0; row < count; ++row)
#pragma unroll
        for (int k = 0; k < kPairs; ++k)
          if (this->has_pair(k))
            slot[place_of(row, k)] = own_pair(this->own_row(tiles_.first_row(step, to) + row), k);
    }
    channel_.posted(post_++);
  }

  const TileChannel<N>& channel_;
  const RowTiles& tiles_;
  const Bulk<N, true>* bulk_;
  u32 step_ = 0, source_ = 0, row_of_unit_ = 0;
  bool is_last_ = true;
  u64 post_ = 0;
};

// The whole of a kernel. Rows that are aligned go by the copy engine; ranks may differ in that.
template <class T, class Epilogue, int N, int kPairs, int kStages>
__device__ __forceinline__ void run_row_tiles(const Job& job, const Rows& rows) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ TileBoard tile_board;
  __shared__ BulkBoard bulk_board;
  __shared__ RowBoard row_board;
  using ByBulk = TileRows<T, N, kPairs, kStages, true>;
  using ByStores = TileRows<T, N, kPairs, kStages, false>;
  constexpr int kItems = kStages == 1 || N == 1 ? 1 : N - 1;
  const TileChannel<N> channel(job, &tile_board);
  const RowTiles tiles(job, rows, rows.width * u32{sizeof(T)}, ByBulk::kOwners);
  const u32 steps = tiles.steps();
  if (steps == 0) return;
  if (kHasBulk && rows.aligned) {
    Bulk<N, true> bulk(channel, job, &bulk_board, shared);
    const auto owner = [&](int after) { return kStages == 1 ? 0 : (job.rank + after) % N; };
    const auto from = [&](u64 i, int after) { return tiles.from(i, owner(after)); };
    const auto bytes = [&](u64 i, int after = 0) { return tiles.bytes(i, owner(after)); };
    const auto move = [&] {
      ByBulk(job, rows, &row_board, channel, tiles, &bulk).template run<Epilogue>(steps);
    };
    const auto send = [&] { bulk.template send_all<kItems>(steps, from, bytes); };
    const auto give_back = [&] {
      if (kStages == 2) bulk.return_all(steps, bytes);
    };
    bulk.run(steps, kStages, move, send, give_back);
  } else {
    channel.run(steps, kStages, [&] {
      ByStores(job, rows, &row_board, channel, tiles, nullptr).template run<Epilogue>(steps);
    });
  }
}

}  // namespace commlib
