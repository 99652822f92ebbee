#include "record/record.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "record/file.h"

namespace commlib::record {
namespace {

void copy_words(char* to, const char* words, size_t room) {
  std::strncpy(to, words, room - 1);
  to[room - 1] = 0;
}

}  // namespace

std::string (*explain)(uint64_t id, const char* kind) = nullptr;
void (*find_site)() = nullptr;
thread_local uint32_t own_thread = 0;
thread_local uint16_t Record::site = 0;
static const std::atomic<uint32_t> kNoSites{0};
std::atomic<const std::atomic<uint32_t>*> Record::sites_{&kNoSites};

// The thread of a forked child has another number than that which forked.
uint32_t ask_thread() {
  static const int ready = pthread_atfork(nullptr, nullptr, [] { own_thread = 0; });
  static_cast<void>(ready);
  return own_thread = static_cast<uint32_t>(syscall(SYS_gettid));
}

Record::Record(const Identity& identity) : slot_(kRecords ? take_slot() : nullptr) {
  shared_ = slot_ != nullptr;
  if (shared_) sites_ = &header()->wants_sites;
  if (!shared_) {
    slot_ = new Slot();
    if ((full_ = header())) ++full_->unrecorded;
  }
  slot_->rank = identity.rank;
  slot_->world = identity.world;
  slot_->id = identity.id;
  slot_->timeout_s = identity.timeout_s;
  copy_words(slot_->backend, identity.backend, sizeof(slot_->backend));
  for (int r = 0; r < identity.world; ++r) {
    slot_->peers[r].pid = identity.pids[r];
    slot_->peers[r].name = r;
  }
  slot_->state.store(1, std::memory_order_release);
}

Record::~Record() {
  close();
  if (!shared_) delete slot_;
}

// In a forked child the slot is its parent's, and after that it may be another communicator's.
void Record::close() {
  Header* const own_header = shared_ ? header() : full_;
  if (!closed_ && own_header && own_header->pid == getpid()) {
    if (shared_)
      slot_->state.store(2, std::memory_order_release);
    else
      --full_->unrecorded;
  }
  closed_ = true;
}

void Record::refuse(uint64_t number, uint64_t what) {
  if (kRecords && slot_->calls[number % kCalls].number.load() != number)
    write(slot_->calls[number % kCalls], number, what, 0, 0);
}

void Record::write(Entry& entry, uint64_t number, const What& what, size_t bytes) {
  entry.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.entered_ns = now_ns(bytes < kTimedBytes ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC);
  entry.finished_ns = 0;
  entry.what = what.what;
  entry.count = what.count;
  entry.stream = what.stream;
  entry.algorithm = what.algorithm;
  entry.site = site;
  entry.thread = thread_number();
  entry.root = what.root;
  entry.op = what.op;
  entry.dtype = what.dtype;
  entry.redop = what.redop;
  entry.flags = what.flags;
  entry.graph = what.graph;
  entry.number.store(number, std::memory_order_release);
}

void Record::enter(uint64_t number, const What& what, size_t bytes) {
  if (!kRecords) return;
  write(slot_->entries[number % kCalls], number, what, bytes);
  if (what.graph) {
    Graph& graph = slot_->graphs[what.graph - 1];
    if (graph.calls++ == 0) graph.first = number, graph.site = site;
    graph.what = graph.what * 31 + what.what;
  }
  slot_->entered.store(number, std::memory_order_release);
}

uint64_t Record::enter_message(const What& what, size_t bytes) {
  if (!kRecords) return 0;
  const uint64_t number = slot_->messages_made.fetch_add(1, std::memory_order_relaxed) + 1;
  write(slot_->messages[number % kMessages], number, what, bytes);
  return number;
}

bool Record::is_watched() {
  const Header* file = header();
  return kRecords && file && file->watched_until_ns.load() > now_ns();
}

uint16_t Record::graph_of(uint64_t capture) {
  if (!kRecords || capture == 0) return 0;
  if (capture != capture_) {
    capture_ = capture;
    graph_ = 0;
    if (slot_->graphs_used + 1 < kGraphs) graph_ = static_cast<uint16_t>(++slot_->graphs_used);
  }
  return graph_;
}

uint16_t Record::count_kernel(uint64_t capture) {
  const uint16_t graph = graph_of(capture);
  if (graph) slot_->graphs[graph - 1].kernels += 1;
  return graph;
}

void Record::saw_gpu(const Progress& seen, const std::string& what, const std::string& left) {
  if (!kRecords) return;
  Gpu& gpu = slot_->gpu;
  const uint64_t now = now_ns(), over = seen.current.number;
  if (gpu.at_ns == 0 || gpu.over != over || gpu.waits_in != seen.waits_in) {
    if (gpu.waits_in == gpu.over + 1) {  // that wait is over, as far as ticks can tell
      Peer& peer = slot_->peers[gpu.waits_for];
      peer.waits.fetch_add(1, std::memory_order_relaxed);
      peer.waited_ns.fetch_add(now - gpu.since_ns, std::memory_order_relaxed);
    }
    gpu.since_ns = now;
    copy_words(gpu.what, what.c_str(), sizeof(gpu.what));
  }
  gpu.over = over;
  gpu.waits_in = seen.waits_in;
  gpu.waits_for = seen.waits_for;
  gpu.graph = seen.current.graph;
  for (uint32_t graph = 1; graph <= slot_->graphs_used; ++graph)
    slot_->graphs[graph - 1].over = seen.of_graph[graph];
  if (seen.has_left == kLeft && gpu.left_in == 0) {
    copy_words(gpu.left_what, left.c_str(), sizeof(gpu.left_what));
    gpu.left_graph = seen.left.graph;
    gpu.left_of_graph = seen.left_of_graph;
    gpu.left_in = seen.left.number + 1;
  }
  gpu.at_ns = now;
}

void Record::finish_large(uint64_t number, size_t bytes, uint64_t op) {
  const uint64_t now = now_ns();
  slot_->ends[number % kCalls] = {number, now};
  add(op, bytes, now - slot_->calls[number % kCalls].entered_ns);
}

void Record::finish_timed(uint64_t number, size_t bytes, uint64_t op) {
  if (!kRecords) return;
  Entry& entry = slot_->entries[number % kCalls];
  if (bytes >= kTimedBytes) {
    entry.finished_ns = now_ns();
    add(op, bytes, entry.finished_ns - entry.entered_ns);
  }
  finish(number);
}

void Record::add(uint64_t op, size_t bytes, uint64_t ns) {
  Total& total = slot_->large[op];
  total.calls += 1;
  total.bytes += bytes;
  total.ns += ns;
}

void Record::ended(const char* kind, const char* message) {
  if (!kRecords || slot_->has_ended.exchange(1) != 0) return;
  copy_words(slot_->ended, message, sizeof(slot_->ended));
  copy_words(slot_->ended_kind, kind, sizeof(slot_->ended_kind));
}

uint16_t Record::name(const std::string& words) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  Header* const file = header();
  if (!file) return 0;
  const size_t used = file->used;
  for (size_t at = 1; at < used; at += std::strlen(file->strings + at) + 1) {
    if (words == file->strings + at) return static_cast<uint16_t>(at);
  }
  if (used + words.size() + 1 > kStrings) return 0;
  std::memcpy(file->strings + used, words.c_str(), words.size() + 1);
  file->used.store(static_cast<uint32_t>(used + words.size() + 1), std::memory_order_release);
  return static_cast<uint16_t>(used);
}

Waiting::Waiting(Record& record, int peer, uint64_t number, uint32_t message)
    : peer_(record.slot_->peers[peer]), since_ns_(now_ns()) {
  for (Wait& wait : record.slot_->waits) {
    uint32_t none = 0;
    if (!wait.thread.compare_exchange_strong(none, kTaken)) continue;
    wait.peer = peer;
    wait.number = number;
    wait.since_ns = since_ns_;
    wait.message = message;
    wait.thread.store(thread_number(), std::memory_order_release);
    wait_ = &wait;
    return;
  }
}

Waiting::~Waiting() {
  peer_.waits.fetch_add(1, std::memory_order_relaxed);
  peer_.waited_ns.fetch_add(now_ns() - since_ns_, std::memory_order_relaxed);
  if (wait_) wait_->thread.store(0, std::memory_order_release);
}

}  // namespace commlib::record
