// Lines such as "rule op=all_reduce dtype=*": the text of rows and plans that Python writes.
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "commlib/check.h"

namespace commlib {

class TextLine {
 public:
  explicit TextLine(const std::string& line) {
    std::istringstream in(line);
    in >> kind_;
    for (std::string pair; in >> pair;) {
      const size_t at = pair.find('=');
      if (at == std::string::npos)
        fail("ValueError", "no name=value: '", pair, "' in '", line, "'");
      values_.emplace_back(pair.substr(0, at), pair.substr(at + 1));
    }
  }

  const std::string& kind() const { return kind_; }
  const std::vector<std::pair<std::string, std::string>>& values() const { return values_; }
  const std::string& operator[](const char* name) const {
    for (const auto& [key, value] : values_) {
      if (key == name) return value;
    }
    fail("ValueError", "'", kind_, "' has no ", name);
  }
  bool is(const char* name) const { return (*this)[name] == "yes"; }

 private:
  std::string kind_;
  std::vector<std::pair<std::string, std::string>> values_;
};

// Calls take(line) for each line of a text.
template <class Take>
void each_line(const std::string& text, Take take) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) take(line);
}

inline uint64_t number_in(const std::string& text) {
  size_t read = 0;
  const uint64_t value = std::stoull(text, &read);
  if (read != text.size()) fail("ValueError", "'", text, "' is not a number");
  return value;
}

}  // namespace commlib
