// Each line of the input is kernels that are to run side by side, separated by "|": "vendor", or
// "BLOCKS CLUSTER" of ours. Prints for each line whether each is sure of a place on so
// many multiprocessors.
#include "nccl/footprint.h"

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

using namespace commlib::nccl;

int main(int, char** arguments) {
  const auto multiprocessors = static_cast<unsigned>(std::atoi(arguments[1]));
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<Footprint> together;
    std::istringstream kernels(line);
    for (std::string kernel; std::getline(kernels, kernel, '|');) {
      std::istringstream words(kernel);
      unsigned blocks = 0, cluster = 1;
      const bool ours = static_cast<bool>(words >> blocks >> cluster);
      blocks = std::min(blocks, grid_limit(multiprocessors, together.empty()));
      together.push_back(ours ? footprint_of_kernel(blocks, cluster) : footprint_of_vendor());
    }
    std::cout << (all_fit(together, multiprocessors) ? "yes" : "no") << "\n";
  }
}
