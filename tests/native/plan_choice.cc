// Which algorithm a plan gives to a call on GPUs, as its compiled table finds it: the rows and the
// plan are read from two files, a call from each line of the input.
//
//   plan_choice rows plan <<< "op=all_gather dtype=float32 bytes=65536 symmetric=no max_sms=8"
//
// With max_sms=-1 it spares a GPU of 132 multiprocessors.
#include <fstream>
#include <iostream>
#include <iterator>

#include "nccl/call_words.h"
#include "plan/table.h"
#include "plan/words.h"

namespace {

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string answer(const commlib::PlanTable& plan, const std::string& line) {
  const commlib::Words words("call " + line);
  commlib::Call call{commlib::op_named(words["op"]),
                     static_cast<commlib::DType>(commlib::dtype_named(words["dtype"]))};
  call.max_sms = static_cast<uint32_t>(commlib::number_in(words["max_sms"]));
  const size_t bytes = commlib::number_in(words["bytes"]);
  const bool symmetric = words.is("symmetric");
  const auto mode = commlib::Mode::eager;
  const commlib::Choice* found = plan.find(mode, symmetric, call, bytes);
  if (call.max_sms == commlib::kSparing) {
    found = plan.find_sparing(mode, symmetric, call, bytes, 132);
  } else if (call.max_sms) {
    found = plan.find_within(mode, symmetric, call, bytes);
  }
  if (!found) return "nothing";
  std::string told = plan.row(found->algorithm).name;
  for (size_t at = 0; at < commlib::nccl::kParams.size(); ++at)
    told += commlib::text(" ", commlib::nccl::kParams[at], "=", found->params[at]);
  return told;
}

}  // namespace

int main(int, char** given) {
  try {
    commlib::PlanTable plan(commlib::nccl::kParams);
    plan.learn(text_of(given[1]));
    plan.set(text_of(given[2]), true);
    for (std::string line; std::getline(std::cin, line);) std::cout << answer(plan, line) << "\n";
  } catch (const commlib::Failure& failure) {
    std::cerr << failure.kind() << ": " << failure.what() << "\n";
    return 1;
  }
}
