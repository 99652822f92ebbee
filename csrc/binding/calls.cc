#include "binding/calls.h"

#include <vector>

namespace commlib::binding {
namespace {

std::vector<PyMethodDef>& registered_calls() {
  static std::vector<PyMethodDef> all;
  return all;
}

// Every reduction's code, by what Python callers may give: a name, or torch's ReduceOp.
Object* redop_codes = nullptr;
Object* torch_redop = nullptr;
void set_redops(Object* codes, Object* torch_type) {
  redop_codes = python::again(codes);
  torch_redop = python::again(torch_type);
}

// Torch's enumeration equals the integers behind it, which say nothing to a reader.
bool may_name_redop(Object* object) {
  return object->type == &PyUnicode_Type || object->type == torch_redop ||
         python::is_instance(object, &PyUnicode_Type);
}

[[noreturn]] void refuse(Object* redop) {
  std::string names;
  for (int op = 0; op < kRedOps; ++op)
    names += (op ? ", " : "") + std::string(commlib::name_of(static_cast<RedOp>(op)));
  if (!may_name_redop(redop)) {
    fail("TypeError", "op is of type ", python::type_of(redop), " (", python::repr(redop),
         "), but must be one of ", names, " or a torch.distributed.ReduceOp");
  }
  fail("ValueError", "unknown reduction ", python::repr(redop), "; use one of ", names,
       " or a torch.distributed.ReduceOp");
}

// From now on, and for every holder of these calls.
void keep_versions(Target& target) { target.keeps_versions = true; }
COMMLIB_METHOD_OF_CALLS(call_of, keep_versions, "");

// The names of a Phase's codes, one word each.
std::string phases() {
  std::string names;
#define COMMLIB_PHASE_NAME(phase) names += (names.empty() ? "" : " ") + std::string(#phase);
  COMMLIB_PHASES(COMMLIB_PHASE_NAME)
  return names;
}

}  // namespace

RegisteredCall::RegisteredCall(PyMethodDef method) { registered_calls().push_back(method); }

RedOp From<RedOp>::take(Object* object, const Argument&) {
  Object* const code =
      may_name_redop(object) ? PyDict_GetItemWithError(redop_codes, object) : nullptr;
  if (!code) refuse(object);
  return static_cast<RedOp>(python::integer(code, {"code"}));
}

void reducible(const Target& target, const Buffer& x, RedOp redop) {
  if (target.reduces(x.dtype, redop)) return;
  fail("ValueError", "no reduction '", name_of(redop), "' for ", name_of(x.dtype),
       " (bitwise ones are for integers and bool, min, max and prod for real numbers)");
}

COMMLIB_MODULE(module) {
  module.add(
      {COMMLIB_METHOD("set_redops", set_redops, "codes, torch_type", "dict[Any, int]; type")});
  module.add({COMMLIB_METHOD("phases", phases, "")});
  module.add_class<Calls>(registered_calls());
}

}  // namespace commlib::binding
