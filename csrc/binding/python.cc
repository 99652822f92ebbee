#include "binding/python.h"

#include <new>
#include <utility>

namespace commlib::binding::python {
namespace {

void raise(const Failure& failure) {
  for (const char* module : {"commlib.errors", "builtins"}) {
    Object* const home = PyImport_ImportModule(module);
    Object* const kind = home ? PyObject_GetAttrString(home, failure.kind().c_str()) : nullptr;
    if (home) Py_DecRef(home);
    if (!kind) {
      PyErr_Clear();
      continue;
    }
    const std::string_view what = failure.what();
    const Owned message(
        PyUnicode_DecodeUTF8(what.data(), static_cast<Size>(what.size()), "replace"));
    const Owned error(PyObject_CallFunctionObjArgs(kind, message.get(), nullptr));
    PyErr_SetObject(kind, error.get());
    Py_DecRef(kind);
    return;
  }
  PyErr_SetString(PyExc_RuntimeError, text(failure.kind(), ": ", failure.what()).c_str());
}

std::string string_of(Object* string) {
  Size size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(string, &size);
  if (!utf8) throw Raised();
  return std::string(utf8, static_cast<size_t>(size));
}

}  // namespace

void set_error() noexcept {
  try {
    throw;
  } catch (const Failure& failure) {
    try {
      or_stay([&] { raise(failure); });
    } catch (const Raised&) {
    }
  } catch (const Raised&) {
  } catch (const Interrupted&) {
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, "commlib: out of memory");
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

bool is_instance(Object* object, Object* type) {
  const int is = PyObject_IsInstance(object, type);
  if (is < 0) throw Raised();
  return is != 0;
}

std::string type_of(Object* object) {
  const Owned name(PyObject_GetAttrString(object->type, "__name__"));
  return string_of(name.get());
}

std::string described(Object* object) {
  if (is_none(object)) return "None";
  const std::string type = type_of(object);
  if (type == "ndarray") return "a numpy array";
  return (std::string_view("aeiou").find(type[0]) == std::string_view::npos ? "a " : "an ") + type;
}

std::string str(Object* object) {
  const Owned string(PyObject_Str(object));
  return string_of(string.get());
}

std::string repr(Object* object) {
  const Owned string(PyObject_Repr(object));
  return string_of(string.get());
}

std::string Argument::name() const {
  std::string_view rest = names;
  for (int skip = at; skip > 0; --skip) rest.remove_prefix(rest.find(", ") + 2);
  const std::string name(rest.substr(0, rest.find(", ")));
  return item < 0 ? name : text(name, "[", item, "]");
}

int64_t integer_of_other(Object* object, const Argument& argument) {
  PyErr_Clear();
  const std::string type = type_of(object);
  if (type == "int")
    fail("ValueError", argument.name(), " does not fit 64 bits; pass a smaller number");
  fail("TypeError", argument.name(), " is of type ", type, ", but must be an int");
}

std::pair<std::string, std::string> Callback::operator()(
    std::initializer_list<std::string_view> strings) const {
  const Held held;
  Owned arguments(PyTuple_New(static_cast<Size>(strings.size())));
  Size at = 0;
  for (const std::string_view string : strings) {
    PyTuple_SetItem(
        arguments.get(), at++,
        checked(PyUnicode_DecodeUTF8(string.data(), static_cast<Size>(string.size()), "replace")));
  }
  const Owned result(or_stay([&] { return PyObject_CallObject(function_, arguments.get()); }));
  const Owned first(PySequence_GetItem(result.get(), 0));
  const Owned second(PySequence_GetItem(result.get(), 1));
  char* data = nullptr;
  Size size = 0;
  if (PyBytes_AsStringAndSize(first.get(), &data, &size) != 0) throw Raised();
  return {std::string(data, static_cast<size_t>(size)), string_of(second.get())};
}

}  // namespace commlib::binding::python
