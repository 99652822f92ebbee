// the sender fills cells of the pair's ring | the receiver empties them
//
// Layout: shm/layout.h, Channel. Requirements: none. Cost: write n, read n; one hand-over. A
// message of up to 32 bytes travels in the cell's flag line.
#include <algorithm>
#include <cstring>

#include "commlib/check.h"
#include "shm/algorithm.h"
#include "shm/exclusive.h"
#include "shm/mailbox.h"

namespace commlib::shm {
namespace {

const unsigned char* data_of(const Cell& cell, const unsigned char* room) {
  return cell.message_bytes <= kInlineBytes ? cell.data : room;
}

std::string describe_message(uint64_t bytes, const Descriptor& what) {
  return text(uint64_t(what.count), " elements of ", name_of(static_cast<DType>(what.dtype)), " (",
              bytes, " bytes)");
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
  Outbox& outbox = outboxes_[to];
  const Exclusive exclusive(outbox.busy, "send", "a send to that rank");
  Channel* channel = segment_->channel(rank_, to);
  if (!outbox.backed) {
    const Layout& layout = segment_->layout();
    segment_->back(layout.channel(rank_, to), layout.channel_bytes());
    outbox.backed = true;
  }
  const uint64_t number = ++outbox.messages;
  const std::function<void()> empty = [this] { empty_inboxes(-1); };
  size_t at = 0;
  do {
    const uint64_t index = outbox.next++;
    if (index >= kCells) {
      const Awaited room = {Awaited::room, to, number, index - kCells + 1, message.what};
      waiter_.await(channel->taken, room, &empty);
    }
    Cell& cell = channel->cells[index % kCells];
    cell.message_bytes = message.bytes;
    cell.chunk_bytes = std::min(message.bytes - at, kCellBytes);
    cell.what = message.what;
    unsigned char* room = segment_->cells(rank_, to) + index % kCells * kCellBytes;
    if (cell.chunk_bytes > 0) {
      std::memcpy(message.bytes <= kInlineBytes ? cell.data : room, message.data + at,
                  cell.chunk_bytes);
    }
    at += cell.chunk_bytes;
    cell.seq.store(index + 1, std::memory_order_release);
    waiter_.ring();
  } while (at < message.bytes);
  if (checked_) {
    const Awaited taken = {Awaited::room, to, number, outbox.next, message.what};
    waiter_.await(channel->taken, taken, &empty);
    waiter_.check_alive();
  }
}

void Mailbox::receive(const Message& message, int from) {
  waiter_.check_alive();
  Inbox& inbox = inboxes_[from];
  const Exclusive exclusive(inbox.busy, "recv", "a recv from that rank");
  const std::lock_guard<std::mutex> lock(inbox.mutex);  // others hold it for a moment only
  ++inbox.messages;
  size_t at = 0;
  do {
    at += receive_chunk(message, at, from);
  } while (at < message.bytes);
}

size_t Mailbox::receive_chunk(const Message& message, size_t at, int from) {
  Inbox& inbox = inboxes_[from];
  if (!inbox.parcels.empty()) {
    Parcel& parcel = inbox.parcels.front();
    if (at == 0) expect(message, parcel.message_bytes, parcel.what, from);
    const size_t bytes = parcel.data.size();
    if (bytes > 0) std::memcpy(message.data + at, parcel.data.data(), bytes);
    inbox.parcels.pop_front();
    return bytes;
  }
  Channel* channel = segment_->channel(from, rank_);
  const uint64_t index = inbox.next;
  const Cell& cell = channel->cells[index % kCells];
  const std::function<void()> empty = [this, from] { empty_inboxes(from); };
  waiter_.await(cell.seq, {Awaited::message, from, inbox.messages, index + 1, message.what},
                &empty);
  if (at == 0) expect(message, cell.message_bytes, cell.what, from);
  const size_t bytes = std::min<size_t>(cell.chunk_bytes, message.bytes - at);
  const unsigned char* room = segment_->cells(from, rank_) + index % kCells * kCellBytes;
  if (bytes > 0) std::memcpy(message.data + at, data_of(cell, room), bytes);
  inbox.next = index + 1;
  channel->taken.store(index + 1, std::memory_order_release);
  waiter_.ring();
  return bytes;
}

void Mailbox::expect(const Message& message, uint64_t bytes, const Descriptor& theirs, int from) {
  if (bytes == message.bytes && theirs.dtype == message.what.dtype) return;
  waiter_.end("ValueError", text("recv on rank ", rank_, " expects ",
                                 describe_message(message.bytes, message.what), " from rank ", from,
                                 ", which sent ", describe_message(bytes, theirs),
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
  const unsigned char* room = segment_->cells(from, rank_) + inbox.next % kCells * kCellBytes;
  const unsigned char* data = data_of(cell, room);
  const size_t bytes = std::min<size_t>(cell.chunk_bytes, kCellBytes);
  inbox.parcels.push_back(
      {cell.message_bytes, cell.what, std::vector<unsigned char>(data, data + bytes)});
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
