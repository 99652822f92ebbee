// Rows of a call that does something with each of them: where they are, and their norm.
#pragma once

#include <cstring>
#include <memory>

#include "commlib/row_call.h"
#include "shm/group.h"

namespace commlib::shm {

class Norms {
 public:
  Norms(const Group& group, const Call& call)
      : group_(group),
        call_(call),
        norm_(static_cast<const NormCall&>(*call.rows)),
        wide_(new float[norm_.rows.width]) {}

  const NormCall& norm() const { return norm_; }
  size_t rows() const { return norm_.rows.rows; }
  size_t row_bytes() const { return norm_.rows.width * call_.element(); }
  // This rank's row.
  const unsigned char* in(size_t row) const {
    return call_.in + static_cast<int64_t>(row) * norm_.rows.in_stride_bytes;
  }
  void copy_in(unsigned char* to, size_t row, size_t count) const {
    for (size_t i = 0; i < count; ++i) std::memcpy(to + i * row_bytes(), in(row + i), row_bytes());
  }

  // The two halves: the sum of the sources with the residual, to h; from there to the row's fields.
  RowNorm add(size_t row, const void* const* sources, int count, unsigned char* h) const {
    const During reducing(group_.stamps(), Phase::reduce);
    return group_.add_rows(call_.dtype)(norm_, row, sources, count, h);
  }
  void finish(size_t row, const unsigned char* h, RowNorm row_norm) {
    const During reducing(group_.stamps(), Phase::reduce);
    group_.norms(call_.dtype)(norm_, row, h, row_norm, wide_.get());
  }
  // Both.
  void run(size_t row, const void* const* sources, int count) {
    unsigned char* h = norm_.field(NormField::kSum, row);
    finish(row, h, add(row, sources, count, h));
  }
  void run(size_t row, const void* sum) { run(row, &sum, 1); }

 private:
  const Group& group_;
  const Call& call_;
  const NormCall& norm_;
  std::unique_ptr<float[]> wide_;
};

// The algorithms shm_composed and shm_oneshot, also for what others have no room or too few rows
// for.
void run_composed(Group& group, const Call& call);
void run_oneshot(Group& group, const Call& call);

}  // namespace commlib::shm
