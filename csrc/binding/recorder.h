// The record of calls that Python runs, or torch's own process groups: this rank enters them when
// their arguments were checked, and leaves them when Python says so.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commlib/row_call.h"
#include "record/record.h"

namespace commlib::binding {

class Recorder {
 public:
  static constexpr const char* kName = "Recorder";

  explicit Recorder(const record::Identity& identity);

  // `redop` and `root`: -1 is none.
  void enter(const Call& call, int redop, int root);
  void enter_message(const std::optional<Call>& sent, const std::optional<Call>& received);
  void leave();  // what this thread has entered last

  record::Record& record() { return record_; }

 private:
  using Counts = std::vector<std::atomic<uint64_t>>;

  void enter_half(const Call& message, int peer, record::Flag way, Counts& counts, int at);

  record::Record record_;
  const bool knows_ends_;  // else calls are handed over, and nobody says when they are done
  std::atomic<uint64_t> calls_{0};
  Counts sent_, received_;  // by peer
};
using RecorderPtr = std::shared_ptr<Recorder>;

// What Python holds of it.
struct RecorderHandle {
  static constexpr const char* kName = Recorder::kName;

  RecorderPtr recorder;

  void enter(const std::string& op, const std::string& dtype, int64_t count, int64_t redop,
             int64_t root);
  void leave();
  void ended(const std::string& kind, const std::string& message);
  void close();
};

}  // namespace commlib::binding
