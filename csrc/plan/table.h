// The plan, compiled: which algorithm runs which call. Built once, read on every call.
//
//   the first rule whose keys cover the call
//     | its range for the size, if that algorithm serves the call
//     | else its first fallback that does
//     | else the next rule that covers it
//
// A call on symmetric tensors takes the symmetric rules, which only say where a symmetric algorithm
// pays: if they name another one, or none of them serves, the plain rules decide.
//
// What does not depend on the size is decided when the plan is set: each kind of call has one list
// of choices, the first of which that has its size runs.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/row.h"

namespace commlib {

class TextLine;

enum class Mode { eager, graph };

// An algorithm with its parameters, and the calls of its list that it runs.
struct Choice {
  static constexpr int kNone = -1;
  uint64_t min_bytes;
  uint64_t max_bytes;
  uint64_t align;  // its bytes are a multiple of this: ranks agree on them, not on pointers
  int algorithm;   // place among the rows; kNone: no rule has anything
  Params params;
  int line = 0;  // of the plan's text, counted from 0
  // What is best on fewer multiprocessors, the fastest first, and how long it takes of the time of
  // this one, in thousandths.
  std::vector<Choice> fewer = {};
  uint64_t time = UINT64_MAX;  // this: not measured

  bool has(uint64_t bytes) const {
    return min_bytes <= bytes && bytes <= max_bytes && (align == 1 || bytes % align == 0);
  }
  // How many times larger or smaller than its sizes another is.
  double distance(uint64_t bytes) const {
    const auto ratio = [](uint64_t of, uint64_t to) { return (of + 1.0) / (to + 1.0); };
    if (bytes < min_bytes) return ratio(min_bytes, bytes);
    return bytes > max_bytes ? ratio(bytes, max_bytes) : 1;
  }
};

// Why a call runs what it does.
struct Explained {
  const Choice* usual;   // without a limit; null: nothing can run the call
  const Choice* chosen;  // with it
  uint32_t usual_sms, chosen_sms;
  // What stands before the usual choice and cannot run the call: its line, and "placement",
  // "arena", "reduction" or "align".
  std::vector<std::pair<int, const char*>> passed;
};

class PlanTable {
 public:
  // Throws ValueError for parameters that do not go together.
  using Check = std::function<void(const Row&, const Params&)>;

  // `params`: the names of those that the backend knows, in the order of Choice::params.
  explicit PlanTable(ParamNames params, Check check = nullptr);

  // Every algorithm of the backend, once; what a plan then names by its place.
  void learn(const std::string& text);
  int algorithms() const { return static_cast<int>(rows_.size()); }
  const Row& row(int algorithm) const { return rows_[static_cast<size_t>(algorithm)]; }
  int find_row(Op op, const std::string& name) const;  // -1: none

  // Takes the plan of a text: a line "rule" each, then those of its ranges and fallbacks. A plan
  // that is refused changes nothing. With a limit, a range that takes more multiprocessors runs
  // what was measured as best on so few.
  void set(const std::string& text, bool has_arena, uint32_t max_sms = 0);

  // Null: the plan has nothing for such a call.
  const Choice* find(Mode mode, bool symmetric, const Call& call, size_t bytes) const {
    for (const Choice& choice : list_for(mode, symmetric, call)) {
      if (choice.has(bytes)) return choice.algorithm == Choice::kNone ? nullptr : &choice;
    }
    return nullptr;
  }
  // The same for a call that takes call.max_sms multiprocessors at most: what is best on so few, as
  // far as the plan knows; else what can be cut down to so few, of this range or of the nearest.
  // Null: nothing can.
  const Choice* find_within(Mode mode, bool symmetric, const Call& call, size_t bytes) const;
  // The same for a call that spares a GPU with so many multiprocessors: what would run, or the
  // point of its curve that costs least, by time and multiprocessors: the knee.
  const Choice* find_sparing(Mode mode, bool symmetric, const Call& call, size_t bytes,
                             uint32_t multiprocessors) const;
  // What one of the three above returns for call.max_sms, and why; of the rules again: slow.
  Explained explain(Mode mode, bool symmetric, const Call& call, size_t bytes,
                    uint32_t multiprocessors) const;

  // Whether some algorithm reduces so.
  bool reduces(DType dtype, RedOp redop) const { return reduces_[reduction(dtype, redop)]; }
  bool reduces(Op op) const { return ops_[static_cast<size_t>(planned_as(op))].reduces; }
  bool is_rooted(Op op) const { return ops_[static_cast<size_t>(op)].rooted; }

 private:
  struct Rule;
  struct Wanted;
  struct Step;
  struct OpTraits {
    bool reduces = false;
    bool rooted = false;
  };
  static constexpr size_t kSymmetric = static_cast<size_t>(kOps) * 2, kKinds = 2 * kSymmetric;
  static size_t kind_of(Op op, bool symmetric, Mode mode) {
    return static_cast<size_t>(op) * 2 + (mode == Mode::graph) + (symmetric ? kSymmetric : 0);
  }
  struct Compiled {
    std::vector<std::vector<Choice>> lists{1};  // the first is empty
    std::vector<uint32_t> index = std::vector<uint32_t>(kKinds * kReductions);  // into lists
  };
  const std::vector<Choice>& list_for(Mode mode, bool symmetric, const Call& call) const {
    const size_t kind = kind_of(planned_as(call.op), symmetric, mode) * kReductions;
    return compiled_.lists[compiled_.index[kind + reduction(call.dtype, call.redop)]];
  }
  // Whether its launch can have fewer blocks than the plan says.
  bool can_be_cut(const Choice& choice) const {
    return choice.algorithm != Choice::kNone && !row(choice.algorithm).kernel.empty();
  }
  // Multiprocessors that it takes at most.
  uint32_t sms_of(const Choice& choice) const;
  std::vector<Rule> read(const std::string& text) const;
  void read_line(const TextLine& line, int number, std::vector<Rule>& rules) const;
  Choice read_choice(const TextLine& line, int number, Op op) const;
  void limit(const Rule& rule, Choice& range, uint32_t max_sms) const;
  // The rules of one operation, mode and placement.
  static std::vector<const Rule*> rules_for(const std::vector<Rule>& rules, Op op, Mode mode,
                                            bool symmetric);
  std::vector<Choice> list_of(const std::vector<const Rule*>& rules, const Wanted& wanted) const;
  void compile(const std::vector<const Rule*>& plain, const std::vector<const Rule*>& symmetric,
               size_t kind, bool has_arena, Compiled& made) const;
  // Why it cannot run such a call, in one word; null: it can.
  const char* refusal(const Choice& choice, const Wanted& wanted) const;
  Choice with_stand_in(Choice choice, const Rule& rule, const Wanted& wanted) const;
  void append(const Rule& rule, const Choice& range, const Wanted& wanted,
              std::vector<Choice>& list) const;

  const ParamNames params_;
  const Check check_;
  const size_t blocks_;   // the place of "blocks" among the parameters, where kernels have it
  std::deque<Row> rows_;  // names stay where they are
  OpTraits ops_[kOps];
  std::bitset<kReductions> reduces_;
  Compiled compiled_;
  std::shared_ptr<const std::vector<Rule>> rules_;  // what was compiled: for explanations
  bool has_arena_ = false;
};

}  // namespace commlib
