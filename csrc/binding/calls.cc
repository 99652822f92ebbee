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
void set_redops(Object* codes) { redop_codes = python::again(codes); }

[[noreturn]] void refuse(Object* redop) {
  PyErr_Clear();  // an object that cannot be in a dictionary
  std::string names;
  for (int op = 0; op < kRedOps; ++op)
    names += (op ? ", " : "") + std::string(commlib::name_of(static_cast<RedOp>(op)));
  fail("ValueError", "unknown reduction ", python::repr(redop), "; use one of ", names,
       " or a torch.distributed.ReduceOp");
}

}  // namespace

RegisteredCall::RegisteredCall(PyMethodDef method) { registered_calls().push_back(method); }

RedOp From<RedOp>::take(Object* object, const Argument&) {
  Object* const code = PyDict_GetItemWithError(redop_codes, object);
  if (!code) refuse(object);
  return static_cast<RedOp>(python::integer(code, {"code"}));
}

void reducible(const Target& target, const Buffer& x, RedOp redop) {
  if (target.reduces(x.dtype, redop)) return;
  fail("ValueError", "no reduction '", name_of(redop), "' for ", name_of(x.dtype),
       " (bitwise ones are for integers and bool, min, max and prod for real numbers)");
}

COMMLIB_MODULE(module) {
  module.add({COMMLIB_METHOD("set_redops", set_redops, "codes")});
  module.add_class<Calls>(registered_calls());
}

}  // namespace commlib::binding
