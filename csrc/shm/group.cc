#include "shm/group.h"

#include <cstring>
#include <string>

#include "commlib/check.h"
#include "shm/exclusive.h"
#include "shm/pull.h"
#include "shm/rows.h"

namespace commlib::shm {
namespace {

enum Param { kChunkBytes, kHot, kPull };
const ParamNames kParams = {"chunk_bytes", "hot", "pull"};

}  // namespace

const Algorithm& add(const Algorithm& algorithm) {
  return Algorithm::all().emplace_back(algorithm);
}

Group::Group(std::shared_ptr<Segment> segment, int rank, double timeout_s,
             const ReduceTable* reduce, bool checked)
    : Protocol(std::move(segment), rank, timeout_s),
      checked_(checked),
      reduce_(reduce),
      plan_(kParams) {}

void Group::learn(const std::string& rows) {
  plan_.learn(rows);
  for (int i = static_cast<int>(algorithms_.size()); i < plan_.algorithms(); ++i) {
    const Row& row = plan_.row(i);
    const Algorithm* native = Algorithm::find(row.op, row.name);
    if (!native)
      fail("CommError", name_of(row.op), " has no native ", row.name, " on shm; its file must say ",
           "COMMLIB_SHM_ALGORITHM(", name_of(row.op), ", ", row.name, ", function)");
    for (size_t at = 0; row.reduces && at < kReductions; ++at) {
      if (row.serves[at] && !reduce_->fn[at / kRedOps][at % kRedOps]) {
        fail("CommError", name_of(row.op), " by ", row.name,
             " cannot do what its row says: ", name_of(static_cast<RedOp>(at % kRedOps)), " of ",
             name_of(static_cast<DType>(at / kRedOps)));
      }
    }
    algorithms_.push_back(native);
    if (native->ffi && world() > 1) add_ffi(row, native->ffi);
    recorded_.push_back(record::Record::name(row.name));
  }
}

void Group::run(const Call& call, size_t plan_bytes, bool symmetric) {
  const Exclusive exclusive(busy_, name_of(call.op), "a collective");
  const During planning(stamps(), Phase::plan);
  if (waiter().ended()) waiter().record().refuse(number() + 1, raw(descriptor(call)));
  waiter().check_alive();
  if (world() == 1) return run_local(call);
  if (checked_) check_agreement(descriptor(call), call.detail);
  if (plan_bytes == 0 && call.op != Op::barrier) return;
  run_planned(call, plan_bytes, symmetric);
}

void Group::run_local(const Call& call) {
  if (call.op == Op::all_reduce_rms_norm) {
    Norms norms(*this, call);
    for (size_t row = 0; row < norms.rows(); ++row) norms.run(row, norms.in(row));
  } else if (call.out != call.in && call.bytes() > 0) {
    std::memcpy(call.out, call.in, call.bytes());
  }
}

void Group::run_planned(const Call& call, size_t plan_bytes, bool symmetric) {
  plan_bytes_ = plan_bytes;
  const Choice& plain = plain_choice(call);
  // Chunks are cut as the plain rule says on every rank, wherever its tensors lie: peers must agree
  // on the steps. So must those whose tensors are not in the arena on the algorithm: symmetric ones
  // work next to the plain one, and nothing else runs on symmetric tensors.
  chunk_bytes_ = plain.params[kChunkBytes];
  prepare(plain.params[kHot] != 0);
  prefers_pull_ = plain.params[kPull] != 0;
  const Choice* chosen = symmetric ? plan_.find(Mode::eager, true, call, plan_bytes) : &plain;
  algorithm(*chosen).run(*this, call);  // csrc/collectives/<collective>/<its name>.cc
}

void Group::run_part(const Call& call, size_t plan_bytes) { run_planned(call, plan_bytes, false); }

void Group::run_plain(const Call& call) { algorithm(plain_choice(call)).run(*this, call); }

const Choice& Group::plain_choice(const Call& call) const {
  const Choice* choice = plan_.find(Mode::eager, false, call, plan_bytes_);
  if (choice) return *choice;
  fail("Unsupported", "the plan has no rule for ", name_of(call.op), " of ", plan_bytes_,
       " bytes on shm");
}

// What ranks compare of rows, in one number: how many and how wide, or, with an epilogue of the
// user's, how many elements in all, and a digest.
static uint64_t count_of(const RowCall& call, uint64_t digest) {
  if (call.op == Op::all_reduce_rms_norm) return call.rows.rows << kWidthBits | call.rows.width;
  const uint64_t bits = (digest ^ digest >> 16 ^ digest >> 32 ^ digest >> 48) & 0xffff;
  return bits << kElementBits | (call.rows.rows * call.rows.width & ((1u << kElementBits) - 1));
}

Descriptor Group::descriptor(const Call& call) const {
  Descriptor what{};
  what.op = static_cast<uint64_t>(call.rows ? call.rows->op : call.op);
  what.dtype = static_cast<uint64_t>(call.dtype);
  what.redop = plan_.reduces(call.op) ? static_cast<uint64_t>(call.redop) : kNoRedop;
  what.root = plan_.is_rooted(call.op) ? static_cast<uint64_t>(call.root) : kNoRoot;
  what.inner = inner_ || call.inner;
  what.count = call.rows ? count_of(*call.rows, call.detail) : call.count;
  if (call.rows && call.rows->op == Op::all_reduce_rms_norm)
    what.root = static_cast<const NormCall*>(call.rows)->form();
  return what;
}

void Group::begin(const Call& call) {
  Protocol::begin(call, descriptor(call), recorded_[running_]);
}

bool Group::pulls(const Call& call) const {
  return prefers_pull_ && can_be_pulled(segment(), rank(), call.in);
}

bool Group::prefers_pull(const Call& call) const {
  const Choice* choice = plan_.find(Mode::eager, false, call, call.bytes());
  return choice && choice->params[kPull] != 0;
}

}  // namespace commlib::shm
