// Lines of words, "rule op=all_reduce dtype=*": how Python tells native code its tables, by name.
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "commlib/check.h"

namespace commlib {

class Words {
 public:
  explicit Words(const std::string& line) {
    std::istringstream in(line);
    in >> kind_;
    for (std::string word; in >> word;) {
      const size_t at = word.find('=');
      if (at == std::string::npos)
        fail("ValueError", "no name=value: '", word, "' in '", line, "'");
      named_.emplace_back(word.substr(0, at), word.substr(at + 1));
    }
  }

  const std::string& kind() const { return kind_; }
  const std::vector<std::pair<std::string, std::string>>& named() const { return named_; }
  const std::string& operator[](const char* name) const {
    for (const auto& [key, value] : named_) {
      if (key == name) return value;
    }
    fail("ValueError", "'", kind_, "' does not say its ", name);
  }
  bool is(const char* name) const { return (*this)[name] == "yes"; }

 private:
  std::string kind_;
  std::vector<std::pair<std::string, std::string>> named_;
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
