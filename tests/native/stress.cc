// Threads as ranks on one segment: seeded random mixes of every operation and algorithm, every
// result compared.
//
//   stress [--seconds S] [--seed N] [--ranks W] [--faults-only]
//
// All ranks draw the calls of a round from one generator, so they agree on them; where their
// tensors lie, how they are aligned and when they come is drawn by each rank alone. One mapping
// serves all, so that TSan sees every access. A round ends well, or with a rank that stops, aborts
// or closes: then all others must say so and name it.
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "rank.h"
#include "record/record.h"
#include "shm/pull.h"

namespace commlib::shm {
namespace {

constexpr size_t kArenaBytes = 24 << 20;
constexpr double kTimeoutS = 60;
constexpr double kFaultTimeoutS = 1;

enum class End { well, stops, aborts, closes };

// What the survivors must hear about rank `who`.
bool names(const Failure& failure, End end, int who) {
  const std::string said = failure.what();
  const std::string rank = text("rank ", who);
  if (end == End::stops)
    return failure.kind() == "CommTimeout" && said.find(rank + " did not come to ") == 0;
  if (end == End::aborts) return failure.kind() == "CommError" && said.find(rank + " aborted") == 0;
  return failure.kind() == "PeerLost" && said.find(rank + " closed its communicator") == 0;
}

void round(Report& report, uint64_t seed, int world, End end) {
  Random random(seed);
  const bool checked = draw(random, 4) == 0;
  const bool spins = draw(random, 2) == 0;  // where there is a core for each rank
  const bool faulty = end != End::well;
  const int calls = faulty ? 200 : 60;
  const int culprit = faulty ? static_cast<int>(draw(random, world)) : -1;
  const int last = static_cast<int>(draw(random, 30));
  const auto segment = Segment::create({world, kArenaBytes + draw(random, 5000)}, seed);
  for (int r = 0; r < world; ++r) {
    segment->back(segment->layout().section(r), segment->layout().fixed_bytes());
    publish_process(segment->control(r));
    if (spins) publish_cores(segment->control(r));
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([=, &report] {
      const auto where = [=] {
        return text("rank ", r, " of ", world, ", seed ", seed, checked ? ", checked" : "", ": ");
      };
      try {
        Rank rank(report, segment, r, end == End::stops ? kFaultTimeoutS : kTimeoutS, checked,
                  seed);
        for (int i = 0; i < calls; ++i) {
          if (r == culprit && i == last) {
            if (end == End::aborts) rank.abort();
            if (end == End::closes) rank.close();
            return;
          }
          rank.one_call(faulty);
        }
        if (faulty) report.complain(where(), "did not notice that rank ", culprit, " is gone");
      } catch (const Failure& failure) {
        if (!names(failure, end, culprit))
          report.complain(where(), failure.kind(), ": ", failure.what());
      } catch (const std::exception& error) {
        report.complain(where(), error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// Threads make communicators at once: each has a record of its own, which nobody else writes.
void records_apart(Report& report) {
  constexpr int kThreads = 8;
  std::atomic<int> ready{0}, made{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const record::Identity identity{"shm", 1000ull + t, t, 1, 1.0, {0}};
      for (++ready; ready < kThreads;) std::this_thread::yield();
      const record::Record record(identity);
      for (++made; made < kThreads;) std::this_thread::yield();
      if (record.id() != identity.id)
        report.complain("record of ", identity.id, " is that of ", record.id());
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace commlib::shm

int main(int argc, char** argv) {
  using namespace commlib::shm;
  Report report;
  double seconds = 5;
  uint64_t seed = 1;
  int ranks = 0;
  bool faults_only = false;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "0";
    if (name == "--faults-only") faults_only = true;
    if (name == "--seconds") seconds = std::atof(value);
    if (name == "--seed") seed = std::strtoull(value, nullptr, 10);
    if (name == "--ranks") ranks = std::atoi(value);
  }
  alarm(static_cast<unsigned>(seconds) + 120);  // a hang is a failure
  for (int i = 0; i < 20; ++i) records_apart(report);
  const auto start = std::chrono::steady_clock::now();
  const auto spent = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  constexpr int kWorlds[] = {3, 2, 7, 4, 1};  // mostly more ranks than a small machine has cores
  constexpr End kEnds[] = {End::stops, End::aborts, End::closes};
  int rounds = 0;
  for (; spent() < seconds && report.errors == 0; ++rounds, ++seed) {
    const int world = ranks > 0 ? ranks : kWorlds[seed % 5];
    const bool faulty = world > 1 && (faults_only || seed % 4 == 3);
    round(report, seed, world, faulty ? kEnds[seed / 4 % 3] : End::well);
  }
  std::printf("stress: %d rounds up to seed %llu, %llu calls in %.1f s, %d errors\n", rounds,
              static_cast<unsigned long long>(seed - 1),
              static_cast<unsigned long long>(report.calls), spent(), report.errors.load());
  return report.errors == 0 ? 0 : 1;
}
