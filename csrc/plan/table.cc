#include "plan/table.h"

#include <algorithm>
#include <map>

#include "plan/words.h"

namespace commlib {

struct PlanTable::Rule {
  Op op;
  bool symmetric;
  bool eager, graph;
  int dtype, redop;  // -1: all
  std::vector<Choice> ranges, fallback;

  bool covers(size_t reduction) const {
    return (dtype < 0 || reduction / kRedOps == static_cast<size_t>(dtype)) &&
           (redop < 0 || reduction % kRedOps == static_cast<size_t>(redop));
  }
};

PlanTable::PlanTable(ParamNames params, Check check)
    : params_(std::move(params)),
      check_(std::move(check)),
      blocks_(std::find(params_.begin(), params_.end(), std::string("blocks")) - params_.begin()) {}

void PlanTable::learn(const std::string& text) {
  for (Row& row : read_rows(text, params_)) {
    OpFacts& facts = ops_[static_cast<size_t>(row.op)];
    facts = {row.reduces, row.rooted};
    if (row.reduces) reduces_ |= row.serves;
    rows_.push_back(std::move(row));
  }
}

int PlanTable::find_row(Op op, const std::string& name) const {
  for (size_t at = 0; at < rows_.size(); ++at) {
    if (rows_[at].op == op && rows_[at].name == name) return static_cast<int>(at);
  }
  return -1;
}

// A range or a fallback, in the words of its line.
Choice PlanTable::read_choice(const Words& words, Op op) const {
  Choice choice{0, UINT64_MAX, 1, find_row(op, words["algorithm"]), {}};
  if (choice.algorithm < 0)
    fail("ValueError", name_of(op), " has no algorithm '", words["algorithm"], "' here");
  choice.params = row(choice.algorithm).defaults;
  for (const auto& [name, value] : words.named()) {
    if (name == "algorithm") continue;
    const uint64_t number = number_in(value);
    if (name == "max_bytes") {
      choice.most_bytes = number;
    } else if (name == "time") {
      choice.time = number;
    } else if (name == "align") {
      if (number == 0) fail("ValueError", "align is 0; 1 takes every size");
      choice.align = number;
    } else {
      choice.params[param_named(name, params_)] = static_cast<uint32_t>(number);
    }
  }
  if (check_) check_(row(choice.algorithm), choice.params);
  return choice;
}

void PlanTable::read_line(const Words& words, std::vector<Rule>& rules) const {
  if (words.kind() == "rule") {
    const std::string& mode = words["mode"];
    Rule& rule = rules.emplace_back();
    rule.op = op_named(words["op"]);
    rule.symmetric = words["placement"] == "symmetric";
    rule.eager = mode != "graph";
    rule.graph = mode != "eager";
    rule.dtype = dtype_named(words["dtype"]);
    rule.redop = redop_named(words["redop"]);
    return;
  }
  Rule& rule = rules.back();
  Choice choice = read_choice(words, rule.op);
  if (words.kind() == "fallback") return rule.fallback.push_back(choice);
  if (words.kind() == "fewer") return rule.ranges.back().fewer.push_back(choice);
  if (!rule.ranges.empty()) choice.least_bytes = rule.ranges.back().most_bytes + 1;
  rule.ranges.push_back(choice);
}

std::vector<PlanTable::Rule> PlanTable::read(const std::string& text) const {
  std::vector<Rule> rules;
  std::string where;  // the rule stands, for errors
  each_line(text, [&](const std::string& line) {
    constexpr char kWhere[] = "where ";
    if (line.rfind(kWhere, 0) == 0) {
      where = line.substr(sizeof(kWhere) - 1) + ": ";
      return;
    }
    try {
      read_line(Words(line), rules);
    } catch (const Failure& failure) {
      fail(failure.kind().c_str(), where, failure.what());
    }
  });
  return rules;
}

uint32_t PlanTable::sms_of(const Choice& choice) const {
  const Row& row = this->row(choice.algorithm);
  if (row.kernel.empty() || row.composed) return row.sms;
  return row.engine ? 0 : choice.params[blocks_];
}

const Choice* PlanTable::find_within(Mode mode, bool symmetric, const Call& call,
                                     size_t bytes) const {
  const std::vector<Choice>& list = list_for(mode, symmetric, call);
  const auto here = std::find_if(list.begin(), list.end(),
                                 [&](const Choice& choice) { return choice.has(bytes); });
  if (here == list.end() || here->algorithm == Choice::kNone) return nullptr;
  if (sms_of(*here) <= call.max_sms) return &*here;
  for (const Choice& few : here->fewer) {
    if (sms_of(few) <= call.max_sms) return &few;
  }
  if (!here->fewer.empty() && can_be_cut(here->fewer.back())) return &here->fewer.back();
  const Choice* nearest = nullptr;
  for (const Choice& choice : list) {
    if (!can_be_cut(choice) || bytes % choice.align != 0) continue;
    if (!nearest || choice.distance(bytes) < nearest->distance(bytes)) nearest = &choice;
  }
  return nearest;
}

// Kernels on fewer than kKneeSms leave the link half empty. Copy engines only move tensors that lie
// at the same place on every rank, which not every program takes care of.
const Choice* PlanTable::find_sparing(Mode mode, bool symmetric, const Call& call, size_t bytes,
                                      uint32_t multiprocessors) const {
  constexpr uint64_t kKneeSms = 16, kWeight = 4, kOwnTime = 1000;
  const auto cost = [&](const Choice& choice, uint64_t time) {
    return time * (multiprocessors + kWeight * std::min(sms_of(choice), multiprocessors));
  };
  const Choice* const usual = find(mode, symmetric, call, bytes);
  if (!usual) return nullptr;
  const Choice* knee = usual;
  uint64_t least = cost(*usual, kOwnTime);
  for (const Choice& few : usual->fewer) {
    const uint32_t sms = sms_of(few);
    if (few.time == UINT64_MAX || sms < kKneeSms) continue;
    if (const uint64_t here = cost(few, few.time); here < least) {
      knee = &few;
      least = here;
    }
  }
  return knee;
}

// A kind of call: its type and reduction, and what the plain rules have for it if its tensors are
// symmetric.
struct PlanTable::Wanted {
  size_t reduction;
  bool has_arena;
  const std::vector<Choice>* plain;  // null: its tensors are plain
};

bool PlanTable::serves(const Choice& choice, const Wanted& wanted) const {
  const Row& row = this->row(choice.algorithm);
  return row.symmetric == (wanted.plain != nullptr) && (wanted.has_arena || !row.needs_arena) &&
         row.serves[wanted.reduction];
}

// With the first fallback that can be cut down, for limited calls of what cannot be and was not
// measured on fewer multiprocessors.
Choice PlanTable::with_stand_in(Choice choice, const Rule& rule, const Wanted& wanted) const {
  if (can_be_cut(choice) || !choice.fewer.empty()) return choice;
  for (const Choice& other : rule.fallback) {
    if (!can_be_cut(other) || !serves(other, wanted) || other.align != 1) continue;
    choice.fewer.push_back(other);
    break;
  }
  return choice;
}

// Each of them before the first that takes longer.
static void insert_by_time(const std::vector<Choice>& others, std::vector<Choice>& fewer) {
  for (const Choice& other : others) {
    const auto longer = [&](const Choice& few) { return few.time > other.time; };
    fewer.insert(std::find_if(fewer.begin(), fewer.end(), longer), other);
  }
}

// What a call of the range's sizes gets: the range's algorithm, then the fallbacks, up to the first
// that serves every such call.
void PlanTable::append(const Rule& rule, const Choice& range, const Wanted& wanted,
                       std::vector<Choice>& list) const {
  const auto serving = [&](std::vector<Choice> fewer) {
    const auto cannot = [&](const Choice& few) { return !serves(few, wanted); };
    fewer.erase(std::remove_if(fewer.begin(), fewer.end(), cannot), fewer.end());
    return fewer;
  };
  const auto put = [&](Choice choice) {
    choice.least_bytes = std::max(choice.least_bytes, range.least_bytes);
    choice.most_bytes = std::min(choice.most_bytes, range.most_bytes);
    if (choice.least_bytes <= choice.most_bytes) list.push_back(choice);
  };
  std::vector<Choice> entries = {range};
  entries.insert(entries.end(), rule.fallback.begin(), rule.fallback.end());
  for (const Choice& choice : entries) {
    if (wanted.plain && !row(choice.algorithm).symmetric) {
      for (Choice plain : *wanted.plain) {
        insert_by_time(serving(choice.fewer), plain.fewer);
        put(std::move(plain));
      }
      return put({0, UINT64_MAX, 1, Choice::kNone, {}});
    }
    if (!serves(choice, wanted)) continue;
    Choice own = with_stand_in(choice, rule, wanted);
    own.fewer = serving(std::move(own.fewer));
    put(std::move(own));
    if (choice.align == 1) return;
  }
}

std::vector<Choice> PlanTable::list_of(const std::vector<const Rule*>& rules,
                                       const Wanted& wanted) const {
  std::vector<Choice> list;
  for (const Rule* rule : rules) {
    if (!rule->covers(wanted.reduction)) continue;
    for (const Choice& range : rule->ranges) append(*rule, range, wanted, list);
  }
  if (wanted.plain) list.insert(list.end(), wanted.plain->begin(), wanted.plain->end());
  return list;
}

// The lists of each type and reduction; most have the same: what covers and serves them tells.
void PlanTable::compile(const std::vector<const Rule*>& plain,
                        const std::vector<const Rule*>& symmetric, size_t kind, bool has_arena,
                        Compiled& made) const {
  if (plain.empty() && symmetric.empty()) return;
  std::map<std::string, uint32_t> known;
  for (size_t reduction = 0; reduction < kReductions; ++reduction) {
    std::string facts;
    for (const Rule* rule : plain) facts += rule->covers(reduction) ? '1' : '0';
    for (const Rule* rule : symmetric) facts += rule->covers(reduction) ? '1' : '0';
    for (const Row& row : rows_) {
      if (row.op == static_cast<Op>(kind / 2)) facts += row.serves[reduction] ? '1' : '0';
    }
    const auto [at, fresh] = known.emplace(facts, static_cast<uint32_t>(made.lists.size()));
    if (fresh) {
      const std::vector<Choice> own = list_of(plain, {reduction, has_arena, nullptr});
      made.lists.push_back(own);
      made.lists.push_back(list_of(symmetric, {reduction, has_arena, &own}));
    }
    made.index[kind * kReductions + reduction] = at->second;
    made.index[(kind + kSymmetric) * kReductions + reduction] = at->second + 1;
  }
}

void PlanTable::set(const std::string& text, bool has_arena) {
  const std::vector<Rule> rules = read(text);
  Compiled made;
  for (int op = 0; op < kOps; ++op) {
    for (const Mode mode : {Mode::eager, Mode::graph}) {
      std::vector<const Rule*> speaking[2];
      for (const Rule& rule : rules) {
        if (rule.op == static_cast<Op>(op) && (mode == Mode::graph ? rule.graph : rule.eager))
          speaking[rule.symmetric].push_back(&rule);
      }
      const size_t kind = kind_of(static_cast<Op>(op), false, mode);
      compile(speaking[false], speaking[true], kind, has_arena, made);
    }
  }
  compiled_ = std::move(made);
}

}  // namespace commlib
