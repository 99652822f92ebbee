// Each line of the input is kernels that are to run side by side, separated by "|": "vendor", or
// "BLOCKS CLUSTER FRACTION" of ours. Prints for each line whether they fit on so many
// multiprocessors.
#include "nccl/footprint.h"

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

using namespace commlib::nccl;

int main(int, char** arguments) {
  const auto multiprocessors = static_cast<unsigned>(std::atoi(arguments[1]));
  for (std::string line; std::getline(std::cin, line);) {
    Footprint together;
    std::istringstream kernels(line);
    for (std::string kernel; std::getline(kernels, kernel, '|');) {
      std::istringstream words(kernel);
      unsigned blocks = 0, cluster = 1;
      double fraction = 0;
      const bool ours = static_cast<bool>(words >> blocks >> cluster >> fraction);
      together = together.beside(ours ? footprint_of_kernel(blocks, cluster, fraction)
                                      : footprint_of_vendor());
    }
    std::cout << (together.fits(multiprocessors) ? "yes" : "no") << "\n";
  }
}
