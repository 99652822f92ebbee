// store on a GPU: how a call is divided.
#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>

#include "binding/device_code.h"
#include "binding/launches.h"

namespace commlib::binding {
namespace {

namespace ffi = tvm::ffi;
using kernels::DenseStoreJob;
using kernels::StoreAs;
using kernels::StoreFrom;
using kernels::StoreJob;
using kernels::StoreSide;

constexpr unsigned kThreads = 256;  // kStoreThreads of store.cu

// Threads of a token, and units that each has under way.
struct Shape {
  int lanes, loads;
};
constexpr Shape kShapes[] = {{256, 1}, {32, 1}, {32, 2}, {32, 8}};
enum ShapeIndex { kWholeBlock, kShort, kNarrow, kWide };
// Up to so many tokens a token has a block of its own, by units: a warp each would be slow.
constexpr int64_t kFewTokens = 512, kWideUnits = 64;
constexpr int64_t kSomeTokens = 2048, kVeryWideUnits = 128;
// Above it tokens claim their slots in a launch ahead: comparing all with all grows with the
// square.
constexpr int64_t kMostCompared = 4096;

// What moves a unit, and its bytes where it comes from and where it goes.
struct Move {
  int index;
  int64_t from_bytes, to_bytes;
};
constexpr int kCopies = 5;  // of 16, 8, 4, 2 and 1 bytes
constexpr int kMoves = kCopies + 3 * 2 * 2;

const char* name_of(StoreFrom from) {
  return from == StoreFrom::f32   ? "float"
         : from == StoreFrom::f16 ? "commlib::half"
                                  : "commlib::bfloat16";
}

Move copy_of(int index) { return {index, 16 >> index, 16 >> index}; }

// 16 bytes of elements, or one.
Move rounding(StoreFrom from, StoreAs as, bool one) {
  const int64_t element = from == StoreFrom::f32 ? 4 : 2;
  const int type = static_cast<int>(from) - static_cast<int>(StoreFrom::f32);
  const int64_t count = one ? 1 : 16 / element;
  return {kCopies + (type * 2 + (as == StoreAs::e5m2)) * 2 + one, count * element, count};
}

std::string expression_of(int move) {
  if (move < kCopies) return text("commlib::kernels::Copy<", 16 >> move, ">");
  const int number = move - kCopies;
  const auto from = static_cast<StoreFrom>(number / 4 + static_cast<int>(StoreFrom::f32));
  const auto as = number / 2 % 2 ? StoreAs::e5m2 : StoreAs::e4m3;
  return text("commlib::kernels::Quantise<", name_of(from), ", ",
              as == StoreAs::e4m3 ? "commlib::e4m3" : "commlib::e5m2", ", ",
              rounding(from, as, number % 2).to_bytes, ">");
}

enum JobKind { kDense, kGeneral };
constexpr const char* kJobs[] = {"commlib::kernels::DenseStoreJob", "commlib::kernels::StoreJob"};

struct Instances {
  // The last index: whether tokens are compared.
  std::unique_ptr<DeviceCode> store[kMoves][std::size(kJobs)][std::size(kShapes)][2];
  std::unique_ptr<DeviceCode> claim[std::size(kJobs)];

  Instances() {
    const auto code = [](const std::string& expression) {
      return std::make_unique<DeviceCode>("kernels/store.cu", "commlib::kernels::" + expression);
    };
    for (size_t job = 0; job < std::size(kJobs); ++job) {
      claim[job] = code(text("claim<", kJobs[job], ">"));
      for (int move = 0; move < kMoves; ++move)
        for (size_t shape = 0; shape < std::size(kShapes); ++shape)
          for (int compares = 0; compares < 2; ++compares)
            store[move][job][shape][compares] = code(
                text("store<", expression_of(move), ", ", kJobs[job], ", ", kShapes[shape].lanes,
                     ", ", kShapes[shape].loads, ", ", compares ? "true" : "false", ">"));
    }
  }
};

const Instances& instances() {
  static const auto* const kept = new Instances;
  return *kept;
}

bool divides(int64_t bytes, uint64_t all) { return all % static_cast<uint64_t>(bytes) == 0; }

bool serves(const Move& unit, const StoreJob& job) {
  return std::all_of(std::begin(job.sides), std::end(job.sides), [&](const StoreSide& side) {
    const auto run = static_cast<uint64_t>(side.segment_elements) * job.element_bytes;
    const auto from = reinterpret_cast<uint64_t>(side.from) |
                      static_cast<uint64_t>(side.from_row | side.from_segment);
    const auto to = reinterpret_cast<uint64_t>(side.to) |
                    static_cast<uint64_t>(side.to_page | side.to_slot | side.to_segment);
    return divides(unit.from_bytes, run) && divides(std::min<int64_t>(16, unit.from_bytes), from) &&
           divides(unit.to_bytes, to);
  });
}

// The widest unit that all rows and strides are multiples of.
Move move_of(const StoreJob& job, StoreFrom from, StoreAs as) {
  if (as == StoreAs::copy) {
    int index = 0;
    while (index + 1 < kCopies && !serves(copy_of(index), job)) ++index;
    return copy_of(index);
  }
  const Move wide = rounding(from, as, false);
  return serves(wide, job) ? wide : rounding(from, as, true);
}

int64_t units_of_token(const StoreJob& job, const Move& unit) {
  int64_t units = 0;
  for (const StoreSide& side : job.sides)
    units += side.segments * side.segment_elements * job.element_bytes / unit.from_bytes;
  return units;
}

ShapeIndex shape_of(const StoreJob& job, int64_t units) {
  if (units <= kShapes[kShort].lanes) return kShort;
  if (units <= kWideUnits) return kNarrow;
  const int64_t few = units > kVeryWideUnits ? kSomeTokens : kFewTokens;
  return job.tokens <= few ? kWholeBlock : kWide;
}

int64_t scales_of(const StoreJob& job) {
  int64_t scales = 0;
  for (const StoreSide& side : job.sides) scales += side.scales_step ? side.segments : 1;
  return scales;
}

// One run each, and no pages to find.
bool is_dense(const StoreJob& job) {
  return job.page_size == 1 && job.sides[0].segments == 1 && job.sides[1].segments == 1;
}

DenseStoreJob dense(const StoreJob& job) {
  DenseStoreJob dense = {};
  for (int s = 0; s < 2; ++s) {
    const StoreSide& side = job.sides[s];
    dense.from[s] = side.from;
    dense.from_row[s] = side.from_row;
    dense.to[s] = side.to;
    dense.to_slot[s] = side.to_page;  // a page is a slot
    dense.elements[s] = static_cast<unsigned>(side.segment_elements);
    dense.scales[s] = side.scales;
    dense.scale[s] = side.scale;
  }
  dense.slots = job.slots;
  dense.slots_step = job.slots_step;
  dense.tokens = job.tokens;
  dense.num_slots = job.num_slots;
  dense.element_bytes = job.element_bytes;
  dense.wide = job.wide;
  dense.unique = job.unique;
  dense.num_reserved = job.num_reserved;
  dense.claims = job.claims;
  dense.counter = job.counter;
  std::copy(std::begin(job.reserved), std::end(job.reserved), dense.reserved);
  return dense;
}

void launch(const StoreJob& like, const Move& move, JobKind kind, DLDevice device, void* job) {
  const Instances& all = instances();
  const auto blocks = [&](int64_t of_block) {
    return static_cast<unsigned>((like.tokens + of_block - 1) / of_block);
  };
  if (like.claims) all.claim[kind]->launch(blocks(kThreads), kThreads, device, job);
  const ShapeIndex shape = shape_of(like, units_of_token(like, move));
  const bool compares = !like.unique && !like.claims;
  all.store[move.index][kind][shape][compares]->launch(blocks(kThreads / kShapes[shape].lanes),
                                                       kThreads, device, job);
}

}  // namespace

void launch_store(StoreJob* job, StoreFrom from, StoreAs as, DLDevice device) {
  if (job->tokens >= int64_t{1} << 31)
    fail("Unsupported", job->tokens, " tokens are more than one launch can divide; pass fewer");
  if (as != StoreAs::copy && scales_of(*job) > kernels::kMaxScales)
    fail("Unsupported", "K and V have ", scales_of(*job), " scales, but a GPU kernel takes ",
         kernels::kMaxScales, "; pass one for each tensor");
  job->unique |= job->tokens == 1;
  ffi::Tensor claims;  // of torch's allocator: who gets the memory next is behind us on the stream
  if (!job->unique && job->tokens > kMostCompared) {
    claims = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape{job->num_slots},
                                       {kDLInt, 32, 1}, device);
    job->claims = static_cast<unsigned*>(claims.data_ptr());
  }
  job->counter = counter_on(device.device_id, kStoreCounter);
  if (is_dense(*job)) {
    DenseStoreJob rows = dense(*job);
    launch(*job, move_of(*job, from, as), kDense, device, &rows);
  } else {
    launch(*job, move_of(*job, from, as), kGeneral, device, job);
  }
}

}  // namespace commlib::binding
