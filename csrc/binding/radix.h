// The entry points of csrc/binding/radix.cc that are not methods.
#pragma once

#include "binding/python.h"

namespace commlib::binding {

python::Object* radix_open(python::Object*, python::Object* const* given, python::Size count);
python::Object* radix_restore(python::Object*, python::Object* const* given, python::Size count);

}  // namespace commlib::binding
