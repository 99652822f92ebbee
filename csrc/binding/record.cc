// What Python adds to the record of calls: where in the program they are made, and words for
// errors.
#include "binding/calls.h"
#include "binding/method.h"
#include "record/answer.h"

namespace commlib::binding {
namespace {

// Both return (bytes, words), as every callback does.
python::Callback caller;
python::Callback explainer;

std::string explain(uint64_t id, const char* kind) {
  try {
    return explainer({std::to_string(id), kind}).second;
  } catch (const std::exception&) {
    return "";  // the error itself is what matters
  }
}

// `caller()` says where the program makes the call under way; `explainer(id, kind)` what the ranks
// of a communicator are in, for the error of a kind that ends it.
void set_recorded(Object* new_caller, Object* new_explainer) {
  caller = python::Callback(new_caller);
  explainer = python::Callback(new_explainer);
  record::explain = explain;
  record::find_site = keep_site;
}

void guard_answers() { record::guard_answers(); }

COMMLIB_MODULE(module) {
  module.add({COMMLIB_METHOD("guard_answers", guard_answers, ""),
              COMMLIB_METHOD("set_recorded", set_recorded, "caller, explainer",
                             "Callable[[], tuple[bytes, str]]; "
                             "Callable[[str, str], tuple[bytes, str]]")});
}

}  // namespace

void keep_site() { record::Record::site = caller ? record::Record::name(caller({}).second) : 0; }

}  // namespace commlib::binding
