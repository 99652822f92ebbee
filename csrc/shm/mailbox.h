// Messages between pairs of ranks: one ring of cells per ordered pair, written by the sender,
// emptied by the receiver.
//
// A message is cut into chunks of a cell; one that is pulled is a single chunk, larger than a cell,
// whose data is its address in its sender's process. A rank that waits in a send or a receive
// empties its other inboxes meanwhile, so ranks may send to each other at once and in any order,
// whatever the size.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
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
  // Whether a message of that rank has begun to arrive.
  bool has_message(int from);
  // Both at once, chunk by chunk. `pulled`: a message of more than a cell is read in this process.
  void exchange(const Message& sent, int to, const Message& received, int from, bool pulled);

 private:
  struct Parcel {  // a chunk taken out of the ring before anyone asked for it
    uint64_t message_bytes;
    Descriptor what;
    size_t bytes;
    std::unique_ptr<unsigned char[]> data;
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

  struct Outgoing {  // a message on its way into the ring
    const Message& message;
    int to;
    Channel* channel;
    Outbox& outbox;
    uint64_t number;
    bool pulled;
    uint64_t recorded;
    size_t at = 0;
    bool done = false;
  };
  using Progress = std::function<void()>;

  uint64_t enter(const Message& message, int peer, uint64_t number, record::Flag direction);
  Outgoing begin(const Message& message, int to, bool pulled);
  Awaited room_for(const Outgoing& out) const;
  void put_what_fits(Outgoing& out);
  void put(Outgoing& out);
  void finish(Outgoing& out);
  void empty_inboxes(int except);  // the one its caller is at work on, or -1
  bool take_parcel(int from);
  // `between` runs before each chunk, `waiting` while there is none.
  void take(const Message& message, int from, const Progress& between, const Progress& waiting);
  size_t receive_chunk(const Message& message, size_t at, int from, const Progress& waiting);
  // Copies a chunk out of its cell, or out of its sender's memory.
  void copy_out(const Cell& cell, int from, unsigned char* to, size_t bytes);
  // Returns only if the message is the one the receiver expects.
  void expect(const Message& message, uint64_t bytes, const Descriptor& sent, int from);

  std::shared_ptr<Segment> segment_;
  int rank_;
  bool checked_;
  Waiter& waiter_;
  std::vector<Inbox> inboxes_;
  std::vector<Outbox> outboxes_;
};

}  // namespace commlib::shm
