// Functions that are registered for tvm-ffi, called with Python objects as they are: tvm-ffi's own
// way from Python costs 200 ns for each tensor, this one 50.
#pragma once

#include "binding/python.h"

namespace commlib::binding {

// (name) → the function; it takes positional arguments: tensors, numbers, strings and None.
python::Object* direct(python::Object*, python::Object* const* given, python::Size count);

}  // namespace commlib::binding
