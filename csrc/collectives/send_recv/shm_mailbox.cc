// the sender fills cells of the pair's ring | the receiver empties them
//
// Layout: shm/layout.h, Channel. Requirements: none. Cost: write n, read n; one hand-over. A
// message of up to 32 bytes travels in the cell's flag line. Both ways at once, a large one may be
// read in its sender's memory: then it is copied once, and the sender waits for that.
#include <algorithm>
#include <cstring>

#include "commlib/check.h"
#include "shm/algorithm.h"
#include "shm/exclusive.h"
#include "shm/mailbox.h"
#include "shm/pull.h"

namespace commlib::shm {
namespace {

std::string describe_message(uint64_t bytes, const Descriptor& what) {
  const char* dtype = name_of(static_cast<DType>(what.dtype));
  return text(counted(uint64_t(what.count), "element"), " of ", dtype, " (", counted(bytes, "byte"),
              ")");
}

}  // namespace

Mailbox::Mailbox(std::shared_ptr<Segment> segment, int rank, Waiter& waiter, bool checked)
    : segment_(std::move(segment)),
      rank_(rank),
      checked_(checked),
      waiter_(waiter),
      inboxes_(segment_->layout().world),
      outboxes_(segment_->layout().world) {}

void Mailbox::send(const Message& message, int to) {
  waiter_.check_alive();
  const Exclusive exclusive(outboxes_[to].busy, "send", "a send to that rank");
  Outgoing out = begin(message, to, false);
  finish(out);
}

void Mailbox::receive(const Message& message, int from) {
  waiter_.check_alive();
  const Exclusive exclusive(inboxes_[from].busy, "recv", "a recv from that rank");
  take(message, from, nullptr, [this, from] { empty_inboxes(from); });
}

bool Mailbox::has_message(int from) {
  Inbox& inbox = inboxes_[from];
  const std::unique_lock<std::mutex> lock(inbox.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // its receiver is at work
  const Cell& cell = segment_->channel(from, rank_)->cells[inbox.next % kCells];
  return !inbox.parcels.empty() || cell.seq.load(std::memory_order_acquire) == inbox.next + 1;
}

void Mailbox::exchange(const Message& sent, int to, const Message& received, int from,
                       bool pulled) {
  waiter_.check_alive();
  const Exclusive sending(outboxes_[to].busy, "send_recv", "a send to that rank");
  const Exclusive receiving(inboxes_[from].busy, "send_recv", "a recv from that rank");
  const bool large = sent.bytes > kCellBytes;
  Outgoing out = begin(sent, to, large && pulled && can_be_pulled(*segment_, rank_, sent.data));
  const auto fill = [&] { put_what_fits(out); };
  const auto wait = [&] {
    put_what_fits(out);
    empty_inboxes(from);
  };
  take(received, from, fill, wait);
  finish(out);
}

Mailbox::Outgoing Mailbox::begin(const Message& message, int to, bool pulled) {
  Outbox& outbox = outboxes_[to];
  if (!outbox.backed) {
    const Layout& layout = segment_->layout();
    segment_->back(layout.channel(rank_, to), layout.channel_bytes());
    outbox.backed = true;
  }
  const uint64_t number = ++outbox.messages;
  return {message,
          to,
          segment_->channel(rank_, to),
          outbox,
          number,
          pulled,
          enter(message, to, number, record::kSends)};
}

uint64_t Mailbox::enter(const Message& message, int peer, uint64_t number, record::Flag direction) {
  const record::What what = {raw(message.what),
                             message.what.count,
                             number,
                             0,
                             static_cast<int16_t>(peer),
                             static_cast<uint8_t>(Op::send_recv),
                             static_cast<uint8_t>(message.what.dtype),
                             record::kNoReduction,
                             direction};
  return waiter_.record().enter_message(what, message.bytes);
}

// That the next cell of the ring is empty.
Awaited Mailbox::room_for(const Outgoing& out) const {
  const uint64_t next = out.outbox.next;
  const uint64_t taken = next < kCells ? 0 : next - kCells + 1;
  return {Awaited::room, out.to, out.number, taken, out.message.what};
}

void Mailbox::put_what_fits(Outgoing& out) {
  const Counter& taken = out.channel->taken;
  while (!out.done && taken.load(std::memory_order_acquire) >= room_for(out).value) put(out);
}

void Mailbox::put(Outgoing& out) {
  const Message& message = out.message;
  const uint64_t index = out.outbox.next++;
  Cell& cell = out.channel->cells[index % kCells];
  cell.message_bytes = message.bytes;
  cell.chunk_bytes = out.pulled ? message.bytes : std::min(message.bytes - out.at, kCellBytes);
  cell.what = message.what;
  unsigned char* room = segment_->cells(rank_, out.to) + index % kCells * kCellBytes;
  if (out.pulled) {
    std::memcpy(cell.data, &message.data, sizeof(message.data));
  } else if (cell.chunk_bytes > 0) {
    std::memcpy(message.bytes <= kInlineBytes ? cell.data : room, message.data + out.at,
                cell.chunk_bytes);
  }
  out.at += cell.chunk_bytes;
  out.done = out.at >= message.bytes;
  cell.seq.store(index + 1, std::memory_order_release);
  waiter_.ring();
}

void Mailbox::finish(Outgoing& out) {
  const Progress empty = [this] { empty_inboxes(-1); };
  while (!out.done) {
    waiter_.await(out.channel->taken, room_for(out), &empty);
    put(out);
  }
  if (checked_ || out.pulled) {
    const Awaited taken = {Awaited::room, out.to, out.number, out.outbox.next, out.message.what};
    waiter_.await(out.channel->taken, taken, &empty);
    waiter_.check_alive();
  }
  waiter_.record().finish_message(out.recorded);
}

void Mailbox::take(const Message& message, int from, const Progress& between,
                   const Progress& waiting) {
  Inbox& inbox = inboxes_[from];
  const std::lock_guard<std::mutex> lock(inbox.mutex);  // others hold it for a moment only
  const uint64_t recorded = enter(message, from, ++inbox.messages, record::kReceives);
  size_t at = 0;
  do {
    if (between) between();
    at += receive_chunk(message, at, from, waiting);
  } while (at < message.bytes);
  waiter_.record().finish_message(recorded);
}

size_t Mailbox::receive_chunk(const Message& message, size_t at, int from,
                              const Progress& waiting) {
  Inbox& inbox = inboxes_[from];
  if (!inbox.parcels.empty()) {
    Parcel& parcel = inbox.parcels.front();
    if (at == 0) expect(message, parcel.message_bytes, parcel.what, from);
    const size_t bytes = parcel.bytes;
    if (bytes > 0) std::memcpy(message.data + at, parcel.data.get(), bytes);
    inbox.parcels.pop_front();
    return bytes;
  }
  Channel* channel = segment_->channel(from, rank_);
  const uint64_t index = inbox.next;
  const Cell& cell = channel->cells[index % kCells];
  waiter_.await(cell.seq, {Awaited::message, from, inbox.messages, index + 1, message.what},
                &waiting);
  if (at == 0) expect(message, cell.message_bytes, cell.what, from);
  const size_t bytes = std::min<size_t>(cell.chunk_bytes, message.bytes - at);
  copy_out(cell, from, message.data + at, bytes);
  inbox.next = index + 1;
  channel->taken.store(index + 1, std::memory_order_release);
  waiter_.ring();
  return bytes;
}

void Mailbox::copy_out(const Cell& cell, int from, unsigned char* to, size_t bytes) {
  const Inbox& inbox = inboxes_[from];
  if (cell.chunk_bytes > kCellBytes) {
    uint64_t address;
    std::memcpy(&address, cell.data, sizeof(address));
    const Awaited message = {Awaited::message, from, inbox.messages, inbox.next + 1, cell.what};
    return waiter_.pull(message, address, to, bytes);
  }
  const unsigned char* room = segment_->cells(from, rank_) + inbox.next % kCells * kCellBytes;
  if (bytes > 0) std::memcpy(to, cell.message_bytes <= kInlineBytes ? cell.data : room, bytes);
}

void Mailbox::expect(const Message& message, uint64_t bytes, const Descriptor& sent, int from) {
  if (bytes == message.bytes && sent.dtype == message.what.dtype) return;
  waiter_.end("ValueError", text("recv on rank ", rank_, " expects ",
                                 describe_message(message.bytes, message.what), " from rank ", from,
                                 ", which sent ", describe_message(bytes, sent),
                                 "; give send and recv tensors of one size and dtype"));
}

void Mailbox::empty_inboxes(int except) {
  for (int r = 0; r < segment_->layout().world; ++r) {
    if (r == except) continue;
    Inbox& inbox = inboxes_[r];
    const std::unique_lock<std::mutex> lock(inbox.mutex, std::try_to_lock);
    if (!lock.owns_lock()) continue;  // its receiver is at work
    while (take_parcel(r)) {
    }
  }
}

bool Mailbox::take_parcel(int from) {
  Inbox& inbox = inboxes_[from];
  Channel* channel = segment_->channel(from, rank_);
  const Cell& cell = channel->cells[inbox.next % kCells];
  if (cell.seq.load(std::memory_order_acquire) != inbox.next + 1) return false;
  Parcel parcel = {cell.message_bytes, cell.what, cell.chunk_bytes, nullptr};
  parcel.data.reset(new unsigned char[parcel.bytes]);  // not zeroed
  copy_out(cell, from, parcel.data.get(), parcel.bytes);
  inbox.parcels.push_back(std::move(parcel));
  ++inbox.next;
  channel->taken.store(inbox.next, std::memory_order_release);
  waiter_.ring();
  return true;
}

namespace {

// Messages do not go through Group::run: a pair of ranks moves them without the others.
COMMLIB_SHM_ALGORITHM(send_recv, shm_mailbox, nullptr);

}  // namespace
}  // namespace commlib::shm
