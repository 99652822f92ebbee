// The table of a plan for Python, without a communicator or a GPU: for explanations, and for
// backends without native code.
#include <memory>
#include <string>

#include "binding/method.h"
#include "plan/table.h"

namespace commlib::binding {
namespace {

// Of parameters, all that an explanation depends on.
const ParamNames kParams = {"blocks", "*"};

class PlanTable {
 public:
  static constexpr const char* kName = "PlanTable";

  PlanTable(const std::string& rows, bool has_arena) : has_arena_(has_arena) { table_.learn(rows); }

  void set(const std::string& plan, int64_t max_sms) {
    table_.set(plan, has_arena_, static_cast<uint32_t>(max_sms));
  }

  // The algorithm that runs such a call; empty: none.
  std::string choose(const std::string& op, const std::string& dtype, const std::string& redop,
                     int64_t bytes, bool symmetric, bool graph) {
    const Choice* const choice = table_.find(graph ? Mode::graph : Mode::eager, symmetric,
                                             call_of(op, dtype, redop), static_cast<size_t>(bytes));
    return choice ? table_.row(choice->algorithm).name : "";
  }

  // JSON: the lines of what is usual, of its points with fewer multiprocessors, and of what is
  // chosen, for which sizes, on how many of them; and the lines that were passed over.
  std::string explain(const std::string& op, const std::string& dtype, const std::string& redop,
                      int64_t bytes, bool symmetric, bool graph, int64_t max_sms,
                      int64_t multiprocessors) {
    Call call = call_of(op, dtype, redop);
    call.max_sms = static_cast<uint32_t>(max_sms);  // -1: kSparing
    const Explained why =
        table_.explain(graph ? Mode::graph : Mode::eager, symmetric, call,
                       static_cast<size_t>(bytes), static_cast<uint32_t>(multiprocessors));
    const auto line_of = [](const Choice* choice) { return choice ? choice->line : -1; };
    std::string fewer, passed;
    for (size_t at = 0; why.usual && at < why.usual->fewer.size(); ++at)
      fewer += text(at ? ", " : "", why.usual->fewer[at].line);
    for (const auto& [line, reason] : why.passed)
      passed += text(passed.empty() ? "" : ", ", "[", line, ", \"", reason, "\"]");
    return text("{\"usual\": ", line_of(why.usual), ", \"usual_sms\": ", why.usual_sms,
                ", \"fewer\": [", fewer, "], \"chosen\": ", line_of(why.chosen),
                ", \"chosen_sms\": ", why.chosen_sms,
                ", \"min_bytes\": ", why.chosen ? why.chosen->min_bytes : 0,
                ", \"max_bytes\": ", why.chosen ? why.chosen->max_bytes : 0, ", \"passed\": [",
                passed, "]}");
  }

 private:
  static Call call_of(const std::string& op, const std::string& dtype, const std::string& redop) {
    return {op_named(op), static_cast<DType>(dtype_named(dtype)),
            static_cast<RedOp>(redop_named(redop))};
  }

  commlib::PlanTable table_{kParams};
  bool has_arena_;
};

// The rows of all its algorithms.
std::unique_ptr<PlanTable> open_plan(const std::string& rows, bool has_arena) {
  return std::make_unique<PlanTable>(rows, has_arena);
}

COMMLIB_MODULE(module) {
  module.add({COMMLIB_METHOD("open_plan", open_plan, "rows, has_arena")});
  module.add_class<PlanTable>({
      COMMLIB_METHOD("set", PlanTable::set, "plan, max_sms"),
      COMMLIB_METHOD("choose", PlanTable::choose, "op, dtype, redop, num_bytes, symmetric, graph"),
      COMMLIB_METHOD("explain", PlanTable::explain,
                     "op, dtype, redop, num_bytes, symmetric, graph, max_sms, multiprocessors"),
  });
}

}  // namespace
}  // namespace commlib::binding
