// Failures of the native half, by the kind of Python error they become.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <utility>

#include "commlib/api.h"

namespace commlib {

class COMMLIB_API Failure : public std::exception {
 public:
  // `kind` is the Python class: "ValueError", "CommError", "Closed", "PeerLost", "CommTimeout",
  // "Unsupported".
  Failure(std::string kind, std::string text) : kind_(std::move(kind)), text_(std::move(text)) {}
  const std::string& kind() const { return kind_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string kind_;
  std::string text_;
};

// A Python signal handler raised (Ctrl-C): the Python error is already set and only has to be
// passed on.
class COMMLIB_API Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted by a signal"; }
};

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// "1 row", "2 rows"; `many` is the plural of a noun that takes more than an s.
template <class Number>
std::string counted(Number number, std::string noun, std::string many = "") {
  if (many.empty()) many = noun + "s";
  return text(number, " ", number == 1 ? noun : many);
}

template <class... Parts>
[[noreturn]] void fail(const char* kind, const Parts&... parts) {
  throw Failure(kind, text(parts...));
}

}  // namespace commlib
