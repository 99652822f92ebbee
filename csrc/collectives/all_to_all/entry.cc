// all_to_all for Python, with equal blocks and with splits.
#include <algorithm>
#include <optional>

#include "binding/blocks.h"
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void exchange(Target& target, const Tensor& out_tensor, const Tensor& x_tensor, bool own_stays) {
  const Buffer x(target, x_tensor, "x"), out(target, out_tensor, "out");
  target.open();
  same_dtype(x, out);
  expect_count(out, "out", x.count, "as many as x");
  if (x.count % target.world() != 0) {
    fail("ValueError", "x has ", counted(x.count, "element"), ", which ", target.world(),
         " ranks cannot share equally; give splits");
  }
  same_or_apart(x, out);
  target.writes(out_tensor);
  Call call = make_call(Op::all_to_all, x, out, x.count / target.world());
  call.own_stays = own_stays;
  // In place, no peer can read x where it lies.
  target.run(call, x.bytes(), x.data == out.data ? Placed{} : Placed{&x, &x});
}

void all_to_all(Target& target, const Tensor& out, const Tensor& x) {
  exchange(target, out, x, false);
}
// For who finds this rank's own block in x: that of `out` holds anything then.
void all_to_others(Target& target, const Tensor& out, const Tensor& x) {
  exchange(target, out, x, true);
}

using Splits = std::optional<Sizes>;  // rows of the first dimension; none: equal blocks

// The elements of each block of `tensor`.
Blocks blocks_of(const Tensor& tensor, const Splits& splits, const char* name, int world) {
  const int64_t rows = tensor.ndim() > 0 ? tensor.size(0) : 1;
  if (!splits && rows % world != 0) {
    fail("ValueError", name, " is not given and ", counted(rows, "row"), " cannot be divided into ",
         world, " ranks");
  }
  Blocks blocks(splits ? *splits : Sizes(world, rows / world), name, world);
  if (blocks.total != static_cast<size_t>(rows))
    fail("ValueError", name, " adds up to ", blocks.total, ", but its tensor has ",
         counted(rows, "row"));
  if (rows > 0) blocks.scale(tensor.numel() / rows);
  return blocks;
}

// What a rank must know of the others' splits.
struct Others {
  int64_t longest = 0;  // block of all ranks, which sets the pace
  Sizes starts;         // of this rank's block in each rank's input
};

// Ranks show each other their splits, where the backend lets them: these must agree in pairs.
Others compare(Target& target, const Blocks& to, const Blocks& from) {
  const int world = target.world();
  Others others;
  Sizes mine = to.of;
  mine.insert(mine.end(), from.of.begin(), from.of.end());
  Sizes everyone(mine.size() * world);
  if (!target.exchange(mine.data(), mine.size(), everyone.data())) {
    others.longest = *std::max_element(mine.begin(), mine.end());
    return others;
  }
  others.starts.resize(world);
  const auto sent = [&](int rank, int peer) { return everyone[rank * 2 * world + peer]; };
  const auto expected = [&](int rank, int peer) { return everyone[(rank * 2 + 1) * world + peer]; };
  for (int rank = 0; rank < world; ++rank) {
    for (int peer = 0; peer < world; ++peer) {
      if (sent(rank, peer) != expected(peer, rank)) {
        fail("ValueError", "all_to_all splits disagree: rank ", rank, " sends ",
             counted(sent(rank, peer), "element"), " to rank ", peer, ", which expects ",
             expected(peer, rank), "; make out_splits the transpose of in_splits");
      }
      others.longest = std::max(others.longest, sent(rank, peer));
      if (peer < target.rank()) others.starts[rank] += sent(rank, peer);
    }
  }
  return others;
}

void all_to_allv(Target& target, const Tensor& out_tensor, const Tensor& x_tensor,
                 const Splits& out_splits, const Splits& in_splits) {
  const Buffer x(target, x_tensor, "x"), out(target, out_tensor, "out");
  target.open();
  same_dtype(x, out);
  const Blocks from = blocks_of(out_tensor, out_splits, "out_splits", target.world());
  const Blocks to = blocks_of(x_tensor, in_splits, "in_splits", target.world());
  if (x.data == out.data && x.count > 0)
    fail("ValueError", "all_to_all with splits cannot run in place; pass another out");
  same_or_apart(x, out);
  const Others others = compare(target, to, from);
  target.writes(out_tensor);
  Call call = make_call(Op::all_to_allv, x, out, static_cast<size_t>(others.longest));
  call.in_counts = to.of.data();
  call.out_counts = from.of.data();
  call.in_starts = others.starts.data();
  target.run(call, call.bytes() * target.world(), {&x, &x});
}

COMMLIB_COLLECTIVE(all_to_all, "out, x");
COMMLIB_COLLECTIVE(all_to_others, "out, x");
COMMLIB_COLLECTIVE(all_to_allv, "out, x, out_splits, in_splits");

}  // namespace
}  // namespace commlib::binding
