// commlib._native: made of what the files of csrc register (method.h).
#include <cstring>
#include <memory>
#include <sstream>

#include "binding/interpreter.h"
#include "binding/method.h"

namespace commlib::binding {
namespace {

std::vector<void (*)(Module&)>& registered_files() {
  static std::vector<void (*)(Module&)> all;
  return all;
}

// Never freed: Python points to it.
PyMethodDef* method_table(std::vector<PyMethodDef> methods) {
  methods.push_back({nullptr, nullptr, 0, nullptr});
  return (new std::vector<PyMethodDef>(std::move(methods)))->data();
}

// Tells native code of torch's classes.
void connect(Object* tensor, Object* parameter) {
  torch = Torch(tensor, parameter);
  connect_interpreter();
}

COMMLIB_MODULE(module) {
  module.add(
      {COMMLIB_METHOD("connect", connect, "tensor, parameter", "type[Tensor]; type[Parameter]")});
}

}  // namespace

Registered::Registered(void (*add)(Module&)) { registered_files().push_back(add); }

void Module::add(std::vector<PyMethodDef> functions) {
  if (PyModule_AddFunctions(module_, method_table(std::move(functions))) != 0)
    throw python::Raised();
}

Object* Module::make_class(const char* name, int bytes, std::vector<PyMethodDef> methods,
                           void (*drop)(Object*)) {
  constexpr int kDealloc = 52, kMethods = 64;  // Py_tp_dealloc, Py_tp_methods
  constexpr unsigned kNotMadeByPython = 1u << 7, kImmutable = 1u << 8, kDefault = 1u << 18;
  PyType_Slot slots[] = {{kDealloc, reinterpret_cast<void*>(drop)},
                         {kMethods, method_table(std::move(methods))},
                         {0, nullptr}};
  const std::string full = std::string("commlib._native.") + name;
  PyType_Spec spec = {strdup(full.c_str()), bytes, 0, kDefault | kNotMadeByPython | kImmutable,
                      slots};
  Object* const made = python::checked(PyType_FromSpec(&spec));
  if (PyModule_AddObject(module_, name, python::again(made)) != 0) throw python::Raised();
  return made;
}

void refuse_count(const char* name, const char* names, Size count, size_t needed) {
  fail("TypeError", name, "(", names, ") takes ", needed, " arguments, but got ", count);
}

const char* document(const char* names, std::vector<std::string> types, const char* objects,
                     const char* file, const char* function) {
  std::istringstream named(objects);
  std::string name;
  for (std::string& type : types) {
    if (type.compare(0, 6, "object") == 0 && std::getline(named >> std::ws, name, ';')) type = name;
  }
  const std::string result = types.back();
  types.pop_back();
  std::string all;
  for (size_t i = 0; i < types.size(); ++i) {
    all += text(i ? ", " : "", Argument{names, static_cast<int>(i)}.name(), ": ", types[i]);
  }
  const char* const inside = std::strstr(file, "csrc/");
  return strdup(
      text("(", all, ") -> ", result, "\n\n", inside ? inside : file, ": ", function).c_str());
}

double From<double>::take(Object* object, const Argument& argument) {
  const double value = PyFloat_AsDouble(object);
  if (value != -1 || !PyErr_Occurred()) return value;
  PyErr_Clear();
  fail("TypeError", argument.name(), " is of type ", python::type_of(object),
       ", but must be a number");
}

std::string From<std::string>::take(Object* object, const Argument& argument) {
  Object* const encoded = PyUnicode_AsEncodedString(object, "utf-8", "backslashreplace");
  if (!encoded) {
    PyErr_Clear();
    fail("TypeError", argument.name(), " is of type ", python::type_of(object),
         ", but must be a str");
  }
  const python::Owned owner(encoded);
  return std::string(From<std::string_view>::take(encoded, argument));
}

std::string_view From<std::string_view>::take(Object* object, const Argument& argument) {
  char* data = nullptr;
  Size size = 0;
  if (PyBytes_AsStringAndSize(object, &data, &size) == 0) return {data, static_cast<size_t>(size)};
  PyErr_Clear();
  fail("TypeError", argument.name(), " is of type ", python::type_of(object),
       ", but must be bytes");
}

std::vector<int64_t> From<std::vector<int64_t>>::take(Object* object, const Argument& argument) {
  const auto refuse = [&] {
    PyErr_Clear();
    fail("TypeError", argument.name(), " is of type ", python::type_of(object),
         ", but must be a sequence of int");
  };
  const Size count = PySequence_Size(object);
  if (count < 0) refuse();
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(count));
  for (Size i = 0; i < count; ++i) {
    Object* const taken = PySequence_GetItem(object, i);
    if (!taken) refuse();  // it has a length, but no order
    const python::Owned item(taken);
    const long long value = PyLong_AsLongLong(item.get());
    if (value == -1 && PyErr_Occurred())
      python::integer_of_other(item.get(), {argument.names, argument.at, argument.function, i});
    values.push_back(value);
  }
  return values;
}

}  // namespace commlib::binding

// What `import commlib._native` calls.
extern "C" __attribute__((visibility("default"))) PyObject* PyInit__native() {
  using namespace commlib::binding;
  static PyModuleDef definition = {};
  definition.name = "commlib._native";
  definition.doc = "The native half of commlib; _native.pyi says what is in it.";
  definition.size = -1;
  definition.head.references = 1;
  constexpr int kStableAbi = 3;
  return python::entered([] {
    python::Owned made(python::checked(PyModule_Create2(&definition, kStableAbi)));
    Module module(made.get());
    for (const auto add : registered_files()) add(module);
    return made.give();
  });
}
