// store on a GPU: how a call is divided.
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>

#include "binding/tensor.h"
#include "kernels/device_code.h"
#include "kernels/store/host.h"

namespace commlib::kernels {
namespace {

constexpr unsigned kThreads = 256;  // kStoreThreads of slots.cuh

// Threads of a token, and units that each has under way: two keep the memory busy, and no more
// threads than that, which is how many tokens a block has.
struct Shape {
  int lanes, loads;
};
constexpr Shape kShapes[] = {{32, 1}, {32, 2}, {64, 2}, {128, 2}, {256, 2}, {256, 1}};
constexpr size_t kNarrow = 1, kWidest = 4, kWholeBlock = 5;
// Up to so many tokens each has a block of its own: all of the GPU for few.
constexpr int64_t kFewTokens = 256;
// Tokens times blocks. Above it tokens claim their slots in a launch ahead: comparing all with all
// grows with the square.
constexpr int64_t kMaxCompared = int64_t{1} << 22;

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

Move move_at(int index) {
  if (index < kCopies) return copy_of(index);
  const int number = index - kCopies;
  const auto from = static_cast<StoreFrom>(number / 4 + static_cast<int>(StoreFrom::f32));
  return rounding(from, number / 2 % 2 ? StoreAs::e5m2 : StoreAs::e4m3, number % 2);
}

std::string expression_of(int index) {
  if (index < kCopies) return text("commlib::kernels::Copy<", 16 >> index, ">");
  const int number = index - kCopies;
  const auto from = static_cast<StoreFrom>(number / 4 + static_cast<int>(StoreFrom::f32));
  return text("commlib::kernels::Quantise<", name_of(from), ", ",
              number / 2 % 2 ? "commlib::e5m2" : "commlib::e4m3", ", ", move_at(index).to_bytes,
              ">");
}

// Units of less than 16 bytes are rare: two shapes are enough to compile for them.
bool has_shape(const Move& unit, size_t shape) {
  return unit.from_bytes >= 16 || shape == kNarrow || shape == kWidest;
}

enum JobKind { kDense, kGeneral };
constexpr const char* kJobs[] = {"commlib::kernels::DenseStoreJob", "commlib::kernels::StoreJob"};

struct Instances {
  // The last index: whether tokens are compared.
  std::unique_ptr<DeviceCode> store[kMoves][std::size(kJobs)][std::size(kShapes)][2];
  std::unique_ptr<DeviceCode> claim[std::size(kJobs)];

  Instances() {
    const auto code = [](const std::string& expression) {
      return std::make_unique<DeviceCode>("kernels/store/gpu.cu",
                                          "commlib::kernels::" + expression);
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
  static const auto* const instance = new Instances;
  return *instance;
}

const DeviceCodes codes([](const DeviceCodes::Show& show) {
  const Instances& all = instances();
  for (const auto& claim : all.claim) show(*claim);
  for (int move = 0; move < kMoves; ++move)
    for (const auto& shapes : all.store[move])
      for (size_t shape = 0; shape < std::size(kShapes); ++shape)
        if (has_shape(move_at(move), shape))
          for (const auto& code : shapes[shape]) show(*code);
});

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

size_t shape_of(const StoreJob& job, const Move& unit) {
  const int64_t units = units_of_token(job, unit);
  const bool few = job.tokens <= kFewTokens;
  if (unit.from_bytes < 16) return few || units > kShapes[kWidest].lanes ? kWidest : kNarrow;
  if (few) return units <= kShapes[kWholeBlock].lanes ? kWholeBlock : kWidest;
  size_t shape = 0;
  while (shape < kWidest && units > kShapes[shape].lanes * kShapes[shape].loads) ++shape;
  return shape;
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

// How a call is divided.
struct Division {
  Move move;
  size_t shape;
  unsigned blocks;
};

unsigned blocks_for(int64_t tokens, int64_t of_block) {
  return static_cast<unsigned>((tokens + of_block - 1) / of_block);
}

Division divide(const StoreJob& job, StoreFrom from, StoreAs as) {
  const Move move = move_of(job, from, as);
  const size_t shape = shape_of(job, move);
  return {move, shape, blocks_for(job.tokens, kThreads / kShapes[shape].lanes)};
}

void launch(const StoreJob& like, const Division& by, JobKind kind, binding::Device device,
            void* job) {
  const Instances& all = instances();
  if (like.claims)
    all.claim[kind]->launch(blocks_for(like.tokens, kThreads), kThreads, device, job);
  const bool compares = !like.unique && !like.claims;
  all.store[by.move.index][kind][by.shape][compares]->launch(by.blocks, kThreads, device, job);
}

}  // namespace

void launch_store(StoreJob* job, StoreFrom from, StoreAs as, binding::Device device) {
  if (job->tokens >= int64_t{1} << 31)
    fail("Unsupported", job->tokens, " tokens are more than one launch can divide; pass fewer");
  if (as != StoreAs::copy && scales_of(*job) > kMaxScales)
    fail("Unsupported", "K and V have ", scales_of(*job), " scales, but a GPU kernel takes ",
         kMaxScales, "; pass one for each tensor");
  const Division by = divide(*job, from, as);
  job->unique |= job->tokens == 1;
  binding::Words claims;
  if (!job->unique && job->tokens * by.blocks > kMaxCompared) {
    claims = binding::words_on(device, job->num_slots);
    job->claims = static_cast<unsigned*>(claims->tensor.data);
  }
  if (is_dense(*job)) {
    DenseStoreJob rows = dense(*job);
    launch(*job, by, kDense, device, &rows);
  } else {
    launch(*job, by, kGeneral, device, job);
  }
}

}  // namespace commlib::kernels
