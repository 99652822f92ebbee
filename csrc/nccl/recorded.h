// A call on a GPU, entered for readers of the record: until it is on the stream, it is under way.
#pragma once

#include "nccl/call_words.h"
#include "nccl/group.h"

namespace commlib::nccl {

class Group::Recorded {
 public:
  Recorded(Group& group, const Call& call, const Choice& choice, CUstream stream, uint64_t capture)
      : group_(group), record_(*group.record_), message_(call.op == Op::send_recv) {
    if (capture && record::find_site && !record::Record::wants_sites()) record::find_site();
    const record::What what = group.recorded(call, choice, stream, capture);
    if (message_) {
      number_ = record_.enter_message(what, call.bytes());
    } else {
      number_ = ++group.calls_;
      record_.enter(number_, what, call.bytes());
    }
  }
  ~Recorded() {
    if (message_) {
      record_.finish_message(number_);
    } else {
      record_.finish(group_.calls_);  // those that it was made of, too
    }
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

 private:
  Group& group_;
  record::Record& record_;
  const bool message_;
  uint64_t number_ = 0;
};

inline record::What Group::recorded(const Call& call, const Choice& choice, CUstream stream,
                                    uint64_t capture) {
  const bool message = call.op == Op::send_recv;
  const uint64_t agreed = pack(call, choice.algorithm, inner_);
  unsigned flags = (inner_ ? record::kInner : 0) | (capture ? record::kCaptured : 0);
  if (message) flags |= (call.in ? record::kSends : 0) | (call.out ? record::kReceives : 0);
  // Ranks of an all_to_allv know their own sizes alone.
  const size_t bytes = call.op == Op::all_to_allv ? 0 : call.bytes();
  return {Signature(agreed, bytes, call.detail).hash,
          call.count,
          message ? 0 : reinterpret_cast<uint64_t>(stream),
          names_[static_cast<size_t>(choice.algorithm)],
          static_cast<int16_t>(message                    ? (call.in ? call.root : call.source)
                               : plan_.is_rooted(call.op) ? call.root
                                                          : -1),
          static_cast<uint8_t>(call.op),
          static_cast<uint8_t>(call.dtype),
          plan_.reduces(call.op) ? static_cast<uint8_t>(call.redop) : record::kNoReduction,
          static_cast<uint8_t>(flags),
          record_->graph_of(capture)};
}

}  // namespace commlib::nccl
