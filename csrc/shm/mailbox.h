// Messages between pairs of ranks: one ring of cells per ordered pair, written by the sender,
// emptied by the receiver.
//
// A message is cut into chunks of a cell. A rank that waits in a send or a receive empties its
// other inboxes meanwhile, so ranks may send to each other at once and in any order, whatever the
// size.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "shm/group.h"

namespace commlib::shm {

struct Message {
  unsigned char* data;
  size_t bytes;
  Descriptor what;
};

class Mailbox {
 public:
  Mailbox(std::shared_ptr<Segment> segment, int rank, Waiter& waiter, bool checked);

  // Returns when the message is in the ring (checked mode: when the receiver has taken it).
  void send(const Message& message, int to);
  // Returns when the whole message has arrived; its size and type must be those the sender gave.
  void receive(const Message& message, int from);

 private:
  struct Parcel {  // a chunk taken out of the ring before anyone asked for it
    uint64_t message_bytes;
    Descriptor what;
    std::vector<unsigned char> data;
  };
  struct Inbox {
    std::atomic<bool> busy{false};
    std::mutex mutex;  // a receiving thread and a blocked sender's clean-up meet here
    uint64_t next = 0;
    uint64_t messages = 0;
    std::deque<Parcel> parcels;
  };
  struct Outbox {
    std::atomic<bool> busy{false};
    uint64_t next = 0;
    uint64_t messages = 0;
    bool backed = false;
  };

  void empty_inboxes(int except);  // the one its caller is at work on, or -1
  bool take_parcel(int from);
  size_t receive_chunk(const Message& message, size_t at, int from);
  // Returns only if the message is the one the receiver expects.
  void expect(const Message& message, uint64_t bytes, const Descriptor& theirs, int from);

  std::shared_ptr<Segment> segment_;
  int rank_;
  bool checked_;
  Waiter& waiter_;
  std::vector<Inbox> inboxes_;
  std::vector<Outbox> outboxes_;
};

}  // namespace commlib::shm
