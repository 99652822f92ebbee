// all_reduce as the plan has it | the norm of each row
//
// Requirements: none. The sums lie in y where they fit there, else in memory of their own.
#include "shm/algorithm.h"
#include "shm/rows.h"

namespace commlib::shm {

void run_composed(Group& group, const Call& call) {
  Norms norms(group, call);
  const Field& y = call.rows->rows.fields[kY];
  const bool in_y = norms.norm().quant == Quant::none &&
                    y.stride_bytes == static_cast<int64_t>(norms.row_bytes());
  const std::unique_ptr<unsigned char[]> own(in_y ? nullptr : new unsigned char[call.bytes()]);
  unsigned char* sums = in_y ? y.data : own.get();
  if (sums != call.in) norms.copy_in(sums, 0, norms.rows());
  Call part{Op::all_reduce, call.dtype};
  part.in = part.out = sums;
  part.count = call.count;
  part.rows = call.rows;  // ranks compare them
  group.run_part(part, part.bytes());
  for (size_t row = 0; row < norms.rows(); ++row) norms.run(row, sums + row * norms.row_bytes());
}

COMMLIB_SHM_ALGORITHM(all_reduce_rms_norm, shm_composed, run_composed);

}  // namespace commlib::shm
