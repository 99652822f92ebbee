#include "plan/row.h"

#include "plan/words.h"

namespace commlib {
namespace {

// Rows of collectives that do not reduce serve "*": every type, also those without a name.
void serve(Row& row, const Words& words) {
  const int dtype = dtype_named(words["dtype"]), redop = redop_named(words["redop"]);
  for (int d = 0; d < kDTypes; ++d) {
    for (int o = 0; o < kRedOps; ++o) {
      if ((dtype < 0 || dtype == d) && (redop < 0 || redop == o))
        row.serves.set(reduction(static_cast<DType>(d), static_cast<RedOp>(o)));
    }
  }
}

template <class Code>
int code_named(const std::string& name, int count, const char* what) {
  if (name == "*") return -1;
  for (int code = 0; code < count; ++code) {
    if (name == name_of(static_cast<Code>(code))) return code;
  }
  fail("ValueError", "unknown ", what, " '", name, "'");
}

}  // namespace

int dtype_named(const std::string& name) {
  return code_named<DType>(name, kDTypes, "element type");
}
int redop_named(const std::string& name) { return code_named<RedOp>(name, kRedOps, "reduction"); }

size_t param_named(const std::string& name, const ParamNames& params) {
  for (size_t at = 0; at < params.size(); ++at) {
    if (name == params[at]) return at;
  }
  fail("ValueError", "native code knows no parameter '", name, "'");
}

std::vector<Row> read_rows(const std::string& text, const ParamNames& params) {
  std::vector<Row> rows;
  each_line(text, [&](const std::string& line) {
    const Words words(line);
    if (words.kind() == "algorithm") {
      rows.push_back({op_named(words["op"]),
                      words["name"],
                      words["placement"] == "symmetric",
                      words.is("arena"),
                      words["kernel"],
                      words.is("reduces"),
                      words.is("rooted"),
                      words.is("composed"),
                      words.is("engine"),
                      number_in(words["room"]),
                      static_cast<uint32_t>(number_in(words["sms"])),
                      {},
                      {}});
    } else if (words.kind() == "serves") {
      serve(rows.back(), words);
    } else {
      rows.back().defaults[param_named(words["name"], params)] =
          static_cast<uint32_t>(number_in(words["default"]));
    }
  });
  return rows;
}

}  // namespace commlib
