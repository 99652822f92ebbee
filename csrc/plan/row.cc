#include "plan/row.h"

#include "plan/text_line.h"

namespace commlib {
namespace {

// Rows of collectives that do not reduce serve "*": every type, also those without a name.
void serve(Row& row, const TextLine& line) {
  const int dtype = dtype_named(line["dtype"]), redop = redop_named(line["redop"]);
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
    if (name == params[at] || *params[at] == kOthers) return at;
  }
  fail("ValueError", "native code knows no parameter '", name, "'");
}

std::vector<Row> read_rows(const std::string& text, const ParamNames& params) {
  std::vector<Row> rows;
  each_line(text, [&](const std::string& text_of_line) {
    const TextLine line(text_of_line);
    if (line.kind() == "algorithm") {
      rows.push_back({op_named(line["op"]),
                      line["name"],
                      line["placement"] == "symmetric",
                      line.is("arena"),
                      line["kernel"],
                      line.is("reduces"),
                      line.is("rooted"),
                      line.is("composed"),
                      line.is("engine"),
                      number_in(line["room"]),
                      static_cast<uint32_t>(number_in(line["sms"])),
                      {},
                      {}});
    } else if (line.kind() == "serves") {
      serve(rows.back(), line);
    } else {
      rows.back().defaults[param_named(line["name"], params)] =
          static_cast<uint32_t>(number_in(line["default"]));
    }
  });
  return rows;
}

}  // namespace commlib
