// Fuzzes the radix tree: random bytes become calls, and after each the invariants must hold.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "commlib/check.h"
#include "radix/tree.h"

namespace {

using namespace commlib;
using radix::Tree;

// Takes values off the input; after its end they are 0.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  uint32_t below(uint32_t limit) { return at_ == end_ ? 0 : *at_++ % limit; }
  bool over() const { return at_ == end_; }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

class Fuzz {
 public:
  explicit Fuzz(Input in) : in_(in) {
    radix::Options options;
    options.page_size = 1u << in_.below(4);
    options.policy = static_cast<radix::Policy>(in_.below(radix::kPolicies));
    options.tail = in_.below(2) != 0;
    options.events = in_.below(2) != 0;
    options.capacity = in_.below(3) == 0 ? static_cast<int64_t>(in_.below(200)) : -1;
    tree_ = std::make_unique<Tree>(options);
  }

  void run() {
    while (!in_.over()) {
      try {
        step();
      } catch (const Failure& failure) {
        if (failure.kind() != "ValueError") throw;  // the caller's mistakes are expected
      }
      tree_->check();
    }
  }

 private:
  // Exactly as many tokens as asked for, in memory of their own: reading past them is found.
  std::vector<int32_t> prompt() {
    std::vector<int32_t> tokens;
    const uint32_t page = tree_->options().page_size;
    for (uint32_t pages = in_.below(8); pages > 0; --pages)
      tokens.insert(tokens.end(), page, static_cast<int32_t>(in_.below(3)));
    tokens.insert(tokens.end(), in_.below(page), 1);
    tokens.shrink_to_fit();
    return tokens;
  }
  radix::Name space() {
    static const char* names[] = {"", "a", "bb"};
    const uint32_t which = in_.below(8);
    return which < 3 ? radix::Name{true, names[which]} : radix::Name{};
  }

  void step() {
    switch (in_.below(8)) {
      case 0:
      case 1:
        return insert();
      case 2:
      case 3:
        return match();
      case 4:
        return tree_->evict(in_.below(64), in_.below(2) == 1);
      case 5:
        if (!handles_.empty()) tree_->lock(handles_[in_.below(255) % handles_.size()]);
        return;
      case 6:
        if (!handles_.empty()) tree_->unlock(handles_[in_.below(255) % handles_.size()]);
        return;
      default:
        return rare();
    }
  }

  void insert() {
    const std::vector<int32_t> ids = prompt();
    std::vector<int64_t> slots(ids.size());
    for (int64_t& slot : slots) slot = next_slot_++;
    const auto done =
        tree_->insert({ids.data(), false, ids.size()}, {slots.data(), true, slots.size()}, space(),
                      in_.below(3), in_.below(20));
    handles_.push_back(done.handle);
  }

  void match() {
    const std::vector<int32_t> ids = prompt();
    const std::vector<int64_t> wide(ids.begin(), ids.end());
    const bool use_wide = in_.below(2) != 0;
    const radix::Sequence sequence = {use_wide ? static_cast<const void*>(wide.data()) : ids.data(),
                                      use_wide, ids.size()};
    const radix::Name name = space();
    const size_t length = tree_->peek(sequence, name);
    const auto found = tree_->match(sequence, name, in_.below(2) != 0);
    if (found.length != length) fail("RuntimeError", "match and peek differ");
    std::vector<int32_t> slots(found.length);
    tree_->copy_slots(slots.data());
    handles_.push_back(found.handle);
  }

  void rare() {
    switch (in_.below(8)) {
      case 0:
        return tree_->reset(in_.below(2) != 0);
      case 1:
        if (tree_->events()) tree_->events()->take();
        return;
      default:
        handles_.push_back(radix::Handle{in_.below(255)} << (in_.below(2) * 32) | in_.below(16));
    }
  }

  Input in_;
  std::unique_ptr<Tree> tree_;
  std::vector<radix::Handle> handles_;
  int64_t next_slot_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc == 3 && !std::strcmp(argv[1], "--seconds") ? std::atof(argv[2]) : 10;
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::mt19937 random(1);
  long runs = 0;
  for (; elapsed() < seconds; ++runs) {
    std::vector<uint8_t> bytes(16 + random() % 1500);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    try {
      Fuzz({bytes.data(), bytes.size()}).run();
    } catch (const Failure& failure) {
      std::fprintf(stderr, "fuzz_radix: %s\n", failure.what());
      std::abort();
    }
  }
  std::printf("fuzz_radix: %ld inputs, no failure\n", runs);
}
