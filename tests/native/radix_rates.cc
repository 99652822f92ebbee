// How fast the radix tree is without Python around it: requests of a trace, single calls, compares.
// benchmarks/radix_trees.py makes the trace and runs this; it prints one line of JSON.
//
//   radix_rates trace FILE RUNS   FILE: int32 page size, int32 capacity, then for each request
//                                 its length and its tokens
//   radix_rates calls
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "commlib/check.h"
#include "kernels/prefix/host.h"
#include "radix/tree.h"

namespace {

using namespace commlib;
using radix::Tree;
using Tokens = std::vector<int32_t>;

double now_us() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(since).count();
}

radix::Sequence all(const Tokens& tokens) { return {tokens.data(), false, tokens.size()}; }

Tokens counted(size_t count, int32_t first = 0) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Trace {
  explicit Trace(const char* path) {
    std::ifstream file(path, std::ios::binary);
    int32_t head[2], count;
    if (!file.read(reinterpret_cast<char*>(head), sizeof(head)))
      fail("ValueError", path, " is no trace; see the top of radix_rates.cc");
    options.page_size = static_cast<uint32_t>(head[0]);
    capacity = static_cast<size_t>(head[1]);
    while (file.read(reinterpret_cast<char*>(&count), sizeof(count))) {
      prompts.emplace_back(static_cast<size_t>(count));
      file.read(reinterpret_cast<char*>(prompts.back().data()), count * 4l);
    }
  }

  radix::Options options;
  size_t capacity = 0;
  std::vector<Tokens> prompts;
};

// match, copy the slots, lock, evict what is short, insert, unlock; returns us for each request.
double play(const Trace& trace, const Tokens& slots, Tokens& out, double& hit_rate) {
  Tree tree(trace.options);
  const double start = now_us();
  for (const Tokens& prompt : trace.prompts) {
    const Tree::Match match = tree.match(all(prompt), {}, true);
    tree.copy_slots(out.data());
    tree.lock(match.handle);
    const size_t held = tree.evictable() + tree.locked() + prompt.size() - match.length;
    if (held > trace.capacity) tree.evict(static_cast<int64_t>(held - trace.capacity), false);
    tree.insert(all(prompt), {slots.data(), false, prompt.size()}, {}, 0);
    tree.unlock(match.handle);
  }
  const double spent = now_us() - start;
  const radix::Stats& stats = tree.stats();
  hit_rate = static_cast<double>(stats.hit_tokens) / static_cast<double>(stats.requested_tokens);
  return spent / static_cast<double>(trace.prompts.size());
}

void run_trace(const char* path, int runs) {
  const Trace trace(path);
  size_t longest = 0;
  for (const Tokens& prompt : trace.prompts) longest = std::max(longest, prompt.size());
  const Tokens slots = counted(longest);
  Tokens out(longest);
  std::vector<double> us;
  double hit_rate = 0;
  for (int run = 0; run < runs; ++run) us.push_back(play(trace, slots, out, hit_rate));
  std::printf("{\"hit_rate\": %.4f, \"us\": [", hit_rate);
  for (int run = 0; run < runs; ++run) std::printf("%s%.4f", run ? ", " : "", us[run]);
  std::printf("]}\n");
}

// The least of several blocks: what else runs on the machine only adds.
template <class Call>
double best_us(int calls, const Call& call) {
  double best = 1e30;
  for (int block = 0; block < 15; ++block) {
    const double start = now_us();
    for (int i = 0; i < calls; ++i) call();
    best = std::min(best, (now_us() - start) / calls);
  }
  return best;
}

// A prompt that is cached to its end, in `nodes` nodes.
double hot_match(size_t tokens, size_t nodes) {
  Tree tree(radix::Options{});
  const Tokens prompt = counted(tokens);
  Tokens out(tokens);
  for (size_t i = 1; i <= nodes; ++i)
    tree.insert({prompt.data(), false, tokens / nodes * i},
                {prompt.data(), false, tokens / nodes * i}, {}, 0);
  return best_us(tokens > 10000 ? 300 : 3000, [&] {
    tree.match(all(prompt), {}, true);
    tree.copy_slots(out.data());
  });
}

// Time of an eviction of one leaf out of `leaves`, and bytes for each node beyond 8 for a token.
void evictions(size_t leaves, double& us, double& node_bytes) {
  Tree tree(radix::Options{});
  std::mt19937 random(1);
  std::vector<Tokens> prompts;
  for (size_t i = 0; i < leaves; ++i) {
    prompts.push_back(counted(16, static_cast<int32_t>(i)));
    tree.insert(all(prompts.back()), all(prompts.back()), {}, 0);
  }
  for (size_t i = 0; i < 2 * leaves; ++i)  // an order that is not that of their making
    tree.match(all(prompts[random() % leaves]), {}, true);
  const double tokens = static_cast<double>(tree.evictable());
  node_bytes = (static_cast<double>(tree.bytes()) - 8 * tokens) / static_cast<double>(leaves);
  const size_t calls = leaves / 10;
  const double start = now_us();
  for (size_t i = 0; i < calls; ++i) tree.evict(1, false);
  us = (now_us() - start) / static_cast<double>(calls);
}

// Both begin at a cache line, as torch's tensors do.
void compares(size_t tokens) {
  const std::unique_ptr<int32_t, decltype(&std::free)> both(
      static_cast<int32_t*>(std::aligned_alloc(64, tokens * 8)), &std::free);
  int32_t *a = both.get(), *b = a + tokens;
  std::iota(a, a + tokens, 0);
  std::copy(a, a + tokens, b);
  const double bytes = static_cast<double>(tokens) * 4;
  const int calls = static_cast<int>(std::max(3.0, 2e6 / static_cast<double>(tokens)));
  volatile size_t same = 0;
  const double ours = best_us(calls, [&] { same = kernels::prefix_match(a, b, tokens); });
  const double plain = best_us(std::max(1, calls / 4), [&] {
    same = static_cast<size_t>(std::mismatch(a, a + tokens, b).first - a);
  });
  std::printf(", \"compare_%zu\": {\"gbps\": %.1f, \"std_mismatch_gbps\": %.1f}", tokens,
              bytes / ours / 1e3, bytes / plain / 1e3);
}

void run_calls() {
  double evict_us, node_bytes;
  evictions(100000, evict_us, node_bytes);
  std::printf("{\"isa\": \"%s\", \"evict_us\": %.3f, \"node_bytes\": %.1f", kernels::prefix->isa,
              evict_us, node_bytes);
  for (const size_t tokens : {2048, 32768}) {
    std::printf(", \"match_%zu\": %.3f, \"match_%zu_16_nodes\": %.3f", tokens, hot_match(tokens, 1),
                tokens, hot_match(tokens, 16));
  }
  for (const size_t tokens : {256, 2048, 8192, 16384, 32768, 65536, 262144, 1048576})
    compares(tokens);
  std::printf("}\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 4 && !std::strcmp(argv[1], "trace")) {
      run_trace(argv[2], std::max(1, std::atoi(argv[3])));
    } else if (argc == 2 && !std::strcmp(argv[1], "calls")) {
      run_calls();
    } else {
      std::fprintf(stderr, "radix_rates trace FILE RUNS, or radix_rates calls\n");
      return 2;
    }
  } catch (const Failure& failure) {
    std::fprintf(stderr, "radix_rates: %s\n", failure.what());
    return 1;
  }
}
