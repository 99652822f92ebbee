// One call of the stress program as all ranks see it, and the values that go in and must come out.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "shm/layout.h"

namespace commlib::shm {

using Random = std::mt19937_64;

constexpr size_t kMaxBytes = 6 << 20;  // of one tensor: more than a staging ring holds
constexpr size_t kMaxElements = kMaxBytes / 4;
constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::i64, DType::u8};

inline size_t draw(Random& random, size_t below) {
  return std::uniform_int_distribution<size_t>(0, below - 1)(random);
}

// Small whole numbers: their sums are exact in every type, or wrap.
inline unsigned value_of(uint64_t key, int rank, size_t i) {
  return static_cast<unsigned>((key + 7 * rank + i * (2 * rank + 3)) % 23);
}

template <class T>
void put(unsigned char* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

inline void put(DType dtype, unsigned char* to, unsigned value) {
  const float real = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &real, 4);
  switch (dtype) {
    case DType::f32:
      return put(to, bits);
    case DType::bf16:
      return put(to, static_cast<uint16_t>(bits >> 16));
    case DType::i64:
      return put(to, static_cast<int64_t>(value));
    default:
      return put(to, static_cast<uint8_t>(value));
  }
}

// Elements of a rank's input and output, and where the one starts in the other in place.
struct Shape {
  size_t in_count;
  size_t out_count;
  size_t in_at = 0;
  size_t out_at = 0;
  bool in_place;
  bool offers;  // peers may read it where it lies in the arena
};

// Elements [first, first + count) of what rank `rank` put in.
struct Piece {
  int rank;
  size_t first;
  size_t count;
};

// One call as all ranks see it; blocks of `size[r]` elements start at `start[r]`.
struct Step {
  Op op;
  DType dtype;
  RedOp redop;
  int root;
  bool in_place;
  uint64_t key;
  size_t count;  // of one block
  size_t size[kMaxRanks] = {};
  size_t start[kMaxRanks] = {};
  size_t total = 0;

  Step(Random& shared, int world, Op op, int root, bool small) : op(op), root(root) {
    dtype = kDtypes[draw(shared, 4)];
    redop = draw(shared, 2) ? RedOp::sum : RedOp::max;
    in_place = draw(shared, 3) == 0;
    key = shared() >> 8;
    const int blocks = is_whole() ? 1 : world;
    const size_t most = std::min(kMaxBytes / size_of(dtype), kMaxElements) / blocks;
    const size_t tried[] = {most, most / 20, most / 20, 4096, 4096, 4096, 100, 100, 8, 8, 8, 8};
    const size_t largest = small ? 6 : op == Op::send_recv || draw(shared, 4) == 0 ? 0 : 1;
    count = draw(shared, tried[largest + draw(shared, 12 - largest)] + 2);
    for (int r = 0; r < blocks; ++r) {
      size[r] = uneven() ? draw(shared, count + 1) : count;
      start[r] = total;
      total += size[r];
    }
  }
  bool is_whole() const {
    return op == Op::all_reduce || op == Op::broadcast || op == Op::reduce || op == Op::send_recv;
  }
  bool uneven() const { return op == Op::all_gatherv || op == Op::reduce_scatterv; }
  bool reduces() const {
    return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter ||
           op == Op::reduce_scatterv;
  }
  Shape shape(int me, int world) const {
    Shape shape{total, total, 0, 0, in_place, true};
    switch (op) {
      case Op::all_gather:
      case Op::all_gatherv:
        shape.in_count = size[me], shape.in_at = start[me];
        break;
      case Op::reduce_scatter:
      case Op::reduce_scatterv:
        shape.out_count = size[me], shape.out_at = start[me];
        break;
      case Op::broadcast:
        shape.in_place = true, shape.offers = me == root;
        break;
      case Op::gather:
        shape.in_count = size[me], shape.in_at = me == root ? start[me] : 0;
        break;
      case Op::scatter:
        shape.out_count = size[me], shape.out_at = me == root ? start[me] : 0;
        shape.offers = me == root;
        break;
      case Op::all_to_allv:
        shape = {0, 0, 0, 0, false, true};
        for (int r = 0; r < world; ++r) {
          shape.in_count += split(me, r);
          shape.out_count += split(r, me);
        }
        break;
      default:
        break;
    }
    return shape;
  }

  // What rank `me` must hold in the end, in order.
  std::vector<Piece> pieces(int me, int world) const {
    if ((op == Op::reduce || op == Op::gather) && me != root) return {};
    if (op == Op::reduce_scatter || op == Op::reduce_scatterv) return {{me, start[me], size[me]}};
    if (op == Op::scatter) return {{root, start[me], size[me]}};
    if (is_whole()) return {{root, 0, count}};
    std::vector<Piece> pieces;
    for (int r = 0; r < world; ++r) {
      size_t first = op == Op::all_to_all ? start[me] : 0;
      for (int q = 0; op == Op::all_to_allv && q < me; ++q) first += split(r, q);
      pieces.push_back({r, first, op == Op::all_to_allv ? split(r, me) : size[r]});
    }
    return pieces;
  }

  // all_to_allv: what rank `from` sends to rank `to`.
  size_t split(int from, int to) const {
    return (count * (from + 2 * to + 1) / 7 + key % 5) % (count + 1);
  }
  size_t longest_split(int world) const {
    size_t longest = 0;
    for (int r = 0; r < world; ++r) {
      for (int q = 0; q < world; ++q) longest = std::max(longest, split(r, q));
    }
    return longest;
  }
  unsigned reduced(int world, size_t i) const {
    unsigned result = value_of(key, 0, i);
    for (int r = 1; r < world; ++r) {
      const unsigned value = value_of(key, r, i);
      result = redop == RedOp::sum ? result + value : std::max(result, value);
    }
    return result;
  }
};

}  // namespace commlib::shm
