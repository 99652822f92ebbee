#include "plan/table.h"

#include <algorithm>
#include <map>

#include "plan/text_line.h"

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
    ops_[static_cast<size_t>(row.op)] = {row.reduces, row.rooted};
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

// A range, a fallback or a point of a curve.
Choice PlanTable::read_choice(const TextLine& line, int number, Op op) const {
  Choice choice{0, UINT64_MAX, 1, find_row(op, line["algorithm"]), {}, number};
  if (choice.algorithm < 0)
    fail("ValueError", name_of(op), " has no algorithm '", line["algorithm"], "' here");
  choice.params = row(choice.algorithm).defaults;
  for (const auto& [name, value] : line.values()) {
    if (name == "algorithm") continue;
    const uint64_t amount = number_in(value);
    if (name == "max_bytes") {
      choice.max_bytes = amount;
    } else if (name == "time") {
      choice.time = amount;
    } else if (name == "align") {
      if (amount == 0) fail("ValueError", "align is 0; 1 takes every size");
      choice.align = amount;
    } else {
      choice.params[param_named(name, params_)] = static_cast<uint32_t>(amount);
    }
  }
  if (check_) check_(row(choice.algorithm), choice.params);
  return choice;
}

void PlanTable::read_line(const TextLine& line, int number, std::vector<Rule>& rules) const {
  if (line.kind() == "rule") {
    const std::string& mode = line["mode"];
    Rule& rule = rules.emplace_back();
    rule.op = op_named(line["op"]);
    rule.symmetric = line["placement"] == "symmetric";
    rule.eager = mode != "graph";
    rule.graph = mode != "eager";
    rule.dtype = dtype_named(line["dtype"]);
    rule.redop = redop_named(line["redop"]);
    return;
  }
  Rule& rule = rules.back();
  Choice choice = read_choice(line, number, rule.op);
  if (line.kind() == "fallback") return rule.fallback.push_back(choice);
  if (line.kind() == "fewer") return rule.ranges.back().fewer.push_back(choice);
  if (!rule.ranges.empty()) choice.min_bytes = rule.ranges.back().max_bytes + 1;
  rule.ranges.push_back(choice);
}

std::vector<PlanTable::Rule> PlanTable::read(const std::string& text) const {
  std::vector<Rule> rules;
  std::string where;  // the rule stands, for errors
  int number = -1;
  each_line(text, [&](const std::string& line) {
    ++number;
    constexpr char kWhere[] = "where ";
    if (line.rfind(kWhere, 0) == 0) {
      where = line.substr(sizeof(kWhere) - 1) + ": ";
      return;
    }
    try {
      read_line(TextLine(line), number, rules);
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

void PlanTable::limit(const Rule& rule, Choice& range, uint32_t max_sms) const {
  const bool leaves = rule.symmetric && !row(range.algorithm).symmetric;  // it to the plain rules
  if (leaves || sms_of(range) <= max_sms) return;
  for (size_t at = 0; at < range.fewer.size(); ++at) {
    if (sms_of(range.fewer[at]) > max_sms) continue;
    Choice few = range.fewer[at];
    few.min_bytes = range.min_bytes;
    few.max_bytes = range.max_bytes;
    few.align = range.align;
    few.fewer.assign(range.fewer.begin() + static_cast<long>(at) + 1, range.fewer.end());
    for (Choice& fewer : few.fewer)
      fewer.time = (1000 * fewer.time + few.time / 2) / std::max<uint64_t>(few.time, 1);
    few.time = UINT64_MAX;
    range = std::move(few);
    return;
  }
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
  constexpr uint64_t kKneeSms = 16, kWeight = 4, kUsualTime = 1000;
  const auto cost = [&](const Choice& choice, uint64_t time) {
    return time * (multiprocessors + kWeight * std::min(sms_of(choice), multiprocessors));
  };
  const Choice* const usual = find(mode, symmetric, call, bytes);
  if (!usual) return nullptr;
  const Choice* knee = usual;
  uint64_t lowest = cost(*usual, kUsualTime);
  for (const Choice& few : usual->fewer) {
    const uint32_t sms = sms_of(few);
    if (few.time == UINT64_MAX || sms < kKneeSms) continue;
    if (const uint64_t here = cost(few, few.time); here < lowest) {
      knee = &few;
      lowest = here;
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
  std::vector<Step>* steps = nullptr;
};

// An entry that was looked at for a kind of call, in the order of the rules: for explanations.
struct PlanTable::Step {
  uint64_t min_bytes, max_bytes, align;
  int line;
  bool leaves;          // the call to the plain rules
  const char* refusal;  // null: it runs the call
};

const char* PlanTable::refusal(const Choice& choice, const Wanted& wanted) const {
  const Row& row = this->row(choice.algorithm);
  if (row.symmetric != (wanted.plain != nullptr)) return "placement";
  if (row.needs_arena && !wanted.has_arena) return "arena";
  return row.serves[wanted.reduction] ? nullptr : "reduction";
}

// With the first fallback that can be cut down, for limited calls of what cannot be and was not
// measured on fewer multiprocessors.
Choice PlanTable::with_stand_in(Choice choice, const Rule& rule, const Wanted& wanted) const {
  if (can_be_cut(choice) || !choice.fewer.empty()) return choice;
  for (const Choice& other : rule.fallback) {
    if (!can_be_cut(other) || refusal(other, wanted) || other.align != 1) continue;
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
    const auto cannot = [&](const Choice& few) { return refusal(few, wanted) != nullptr; };
    fewer.erase(std::remove_if(fewer.begin(), fewer.end(), cannot), fewer.end());
    return fewer;
  };
  const auto put = [&](Choice choice) {
    choice.min_bytes = std::max(choice.min_bytes, range.min_bytes);
    choice.max_bytes = std::min(choice.max_bytes, range.max_bytes);
    if (choice.min_bytes <= choice.max_bytes) list.push_back(choice);
  };
  std::vector<Choice> entries = {range};
  entries.insert(entries.end(), rule.fallback.begin(), rule.fallback.end());
  for (const Choice& choice : entries) {
    const bool leaves = wanted.plain && !row(choice.algorithm).symmetric;
    const char* const refused = leaves ? nullptr : refusal(choice, wanted);
    if (wanted.steps)
      wanted.steps->push_back(
          {range.min_bytes, range.max_bytes, choice.align, choice.line, leaves, refused});
    if (leaves) {
      for (Choice plain : *wanted.plain) {
        insert_by_time(serving(choice.fewer), plain.fewer);
        put(std::move(plain));
      }
      return put({0, UINT64_MAX, 1, Choice::kNone, {}});
    }
    if (refused) continue;
    Choice able = with_stand_in(choice, rule, wanted);
    able.fewer = serving(std::move(able.fewer));
    put(std::move(able));
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

// The lists of each type and reduction; many share one: it follows from what covers and serves
// them.
void PlanTable::compile(const std::vector<const Rule*>& plain,
                        const std::vector<const Rule*>& symmetric, size_t kind, bool has_arena,
                        Compiled& made) const {
  if (plain.empty() && symmetric.empty()) return;
  std::map<std::string, uint32_t> known;
  for (size_t reduction = 0; reduction < kReductions; ++reduction) {
    std::string key;
    for (const Rule* rule : plain) key += rule->covers(reduction) ? '1' : '0';
    for (const Rule* rule : symmetric) key += rule->covers(reduction) ? '1' : '0';
    for (const Row& row : rows_) {
      if (row.op == static_cast<Op>(kind / 2)) key += row.serves[reduction] ? '1' : '0';
    }
    const auto [at, fresh] = known.emplace(key, static_cast<uint32_t>(made.lists.size()));
    if (fresh) {
      const std::vector<Choice> plain_list = list_of(plain, {reduction, has_arena, nullptr});
      made.lists.push_back(plain_list);
      made.lists.push_back(list_of(symmetric, {reduction, has_arena, &plain_list}));
    }
    made.index[kind * kReductions + reduction] = at->second;
    made.index[(kind + kSymmetric) * kReductions + reduction] = at->second + 1;
  }
}

std::vector<const PlanTable::Rule*> PlanTable::rules_for(const std::vector<Rule>& rules, Op op,
                                                         Mode mode, bool symmetric) {
  std::vector<const Rule*> those;
  for (const Rule& rule : rules) {
    if (rule.op == op && rule.symmetric == symmetric &&
        (mode == Mode::graph ? rule.graph : rule.eager))
      those.push_back(&rule);
  }
  return those;
}

void PlanTable::set(const std::string& text, bool has_arena, uint32_t max_sms) {
  std::vector<Rule> rules = read(text);
  for (Rule& rule : rules) {
    for (Choice& range : rule.ranges) {
      if (max_sms) limit(rule, range, max_sms);
    }
  }
  Compiled made;
  for (int code = 0; code < kOps; ++code) {
    const Op op = static_cast<Op>(code);
    for (const Mode mode : {Mode::eager, Mode::graph})
      compile(rules_for(rules, op, mode, false), rules_for(rules, op, mode, true),
              kind_of(op, false, mode), has_arena, made);
  }
  compiled_ = std::move(made);
  rules_ = std::make_shared<const std::vector<Rule>>(std::move(rules));
  has_arena_ = has_arena;
}

Explained PlanTable::explain(Mode mode, bool symmetric, const Call& call, size_t bytes,
                             uint32_t multiprocessors) const {
  Explained why{};
  why.usual = why.chosen = find(mode, symmetric, call, bytes);
  if (call.max_sms == kSparing) {
    why.chosen = find_sparing(mode, symmetric, call, bytes, multiprocessors);
  } else if (call.max_sms) {
    why.chosen = find_within(mode, symmetric, call, bytes);
  }
  if (why.usual) why.usual_sms = sms_of(*why.usual);
  if (why.chosen) why.chosen_sms = sms_of(*why.chosen);
  if (!rules_) return why;
  const Op op = planned_as(call.op);
  const size_t reduced = reduction(call.dtype, call.redop);
  std::vector<Step> plain_steps, symmetric_steps;
  const std::vector<Choice> plain =
      list_of(rules_for(*rules_, op, mode, false), {reduced, has_arena_, nullptr, &plain_steps});
  if (symmetric)
    list_of(rules_for(*rules_, op, mode, true), {reduced, has_arena_, &plain, &symmetric_steps});
  // Whether one of them runs the call.
  const auto walk = [&](const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      if (bytes < step.min_bytes || bytes > step.max_bytes) continue;
      if (step.leaves) return false;
      const char* const refused = bytes % step.align ? "align" : step.refusal;
      if (!refused) return true;
      why.passed.emplace_back(step.line, refused);
    }
    return false;
  };
  if (!walk(symmetric_steps)) walk(plain_steps);
  return why;
}

}  // namespace commlib
