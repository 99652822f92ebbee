// The record of one communicator: always on, so its cost is a clock of the kernel's and a line of
// stores for each call. What it waits for is kept only once a wait outlasts the spin.
//
//   record.enter(number, what, bytes, algorithm); … record.finish(number, bytes, op);
//   const Waiting waiting(record, peer, number, message);         (around a long wait)
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "record/layout.h"

namespace commlib::record {

#ifdef COMMLIB_NO_RECORDER
constexpr bool kRecords = false;
#else
constexpr bool kRecords = true;
#endif

constexpr size_t kTimedBytes = 64 << 10;  // calls from here on have the exact time

inline uint64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

// The kernel's number of this thread, by which a reader can ask it for its stack; 0: not asked yet.
extern thread_local uint32_t own_thread
    __attribute__((tls_model("initial-exec"), visibility("hidden")));
uint32_t ask_thread();
inline uint32_t thread_number() { return own_thread ? own_thread : ask_thread(); }

// What the ranks of communicator `id` are in, in words, for the error that ends it; set by the
// binding.
extern std::string (*explain)(uint64_t id, const char* kind);
// Keeps the place in the program of the call under way; set by the binding.
extern void (*find_site)();

// What a rank is in a communicator; `id` is the same on all its ranks.
struct Identity {
  const char* backend;
  uint64_t id;
  int rank;
  int world;
  double timeout_s;
  std::vector<int> pids;  // 0: not known
};

// The call as a reader sees it.
struct What {
  uint64_t what;
  uint64_t count;
  uint64_t stream;
  uint16_t algorithm;  // of Record::name()
  int16_t root;
  uint8_t op, dtype, redop, flags;
  uint16_t graph = 0;  // of Record::graph_of()
};

class Record {
 public:
  explicit Record(const Identity& identity);
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  // A collective on shm; `what` is its Descriptor.
  void enter(uint64_t number, uint64_t what, size_t bytes, uint16_t algorithm) {
    if (!kRecords) return;
    write(slot_->calls[number % kCalls], number, what, bytes, algorithm);
    slot_->entered.store(number, std::memory_order_release);
  }
  void finish(uint64_t number) {
    if (kRecords) slot_->finished.store(number, std::memory_order_release);
  }
  // The same on shm, where large calls have the time of their end.
  void finish(uint64_t number, size_t bytes, uint64_t op) {
    if (kRecords && bytes >= kTimedBytes) finish_large(number, bytes, op);
    finish(number);
  }
  // The same of an Entry.
  void finish_timed(uint64_t number, size_t bytes, uint64_t op);
  // The first one that came when the communicator had ended; `number` is that it would have had.
  void refuse(uint64_t number, uint64_t what);
  // A collective of another backend; on a GPU it finishes when it is on the stream.
  void enter(uint64_t number, const What& what, size_t bytes);
  // The number of the graph that a stream is captured into; 0: none.
  uint16_t graph_of(uint64_t capture);
  // The same, of a call that is counted when it runs.
  uint16_t count_kernel(uint64_t capture);
  // Whether a reader looks at this process now and again.
  static bool is_watched();
  uint32_t graphs() const { return slot_->graphs_used; }
  // Where the GPU is, with the calls that it waits in, and has left, in words.
  void saw_gpu(const Progress& seen, const std::string& what, const std::string& left);
  // Returns the number of the message, by which it ends.
  uint64_t enter_message(const What& what, size_t bytes);
  void finish_message(uint64_t number) {
    if (kRecords) slot_->messages[number % kMessages].finished_ns = now_ns(CLOCK_MONOTONIC_COARSE);
  }
  void ended(const char* kind, const char* message);
  void close();
  void saw(int peer, uint64_t number, uint64_t what) {
    slot_->peers[peer].number.store(number, std::memory_order_relaxed);
    slot_->peers[peer].what.store(what, std::memory_order_relaxed);
  }

  uint64_t id() const { return slot_->id; }

  // The place of a string that a reader will find.
  static uint16_t name(const std::string& words);
  // Whether the place of each call in the program is to be kept, and that of this thread's next.
  static bool wants_sites() {
    return kRecords && sites_.load(std::memory_order_relaxed)->load(std::memory_order_relaxed) != 0;
  }
  static thread_local uint16_t site
      __attribute__((tls_model("initial-exec"), visibility("hidden")));

 private:
  friend class Waiting;

  static void write(Brief& call, uint64_t number, uint64_t what, size_t bytes, uint16_t algorithm) {
    call.number.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    call.entered_ns = now_ns(bytes < kTimedBytes ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC);
    call.what = what;
    call.algorithm = algorithm;
    call.site = site;
    call.thread = thread_number();
    call.number.store(number, std::memory_order_release);
  }

  void finish_large(uint64_t number, size_t bytes, uint64_t op);
  void add(uint64_t op, size_t bytes, uint64_t ns);

  static std::atomic<const std::atomic<uint32_t>*> sites_;

  static void write(Entry& entry, uint64_t number, const What& what, size_t bytes);

  Slot* slot_;
  bool shared_;             // else nobody sees it
  Header* full_ = nullptr;  // that of the record which had no slot for it
  bool closed_ = false;
  uint64_t capture_ = 0;  // the newest
  uint16_t graph_ = 0;    // its number
};

// A thread that waits for a peer; `message`: as Wait has it.
class Waiting {
 public:
  Waiting(Record& record, int peer, uint64_t number, uint32_t message);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Peer& peer_;
  uint64_t since_ns_;
  Wait* wait_ = nullptr;
};

}  // namespace commlib::record
