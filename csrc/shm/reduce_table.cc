// Chooses the reduce kernels for this CPU: compiled once per x86-64 level, picked at run time.
#include <cstring>

#include "commlib/reduce.h"

#define COMMLIB_FOR_LEVEL(level)                           \
  void fill_floats_##level(commlib::ReduceTable* table);   \
  void fill_halves_##level(commlib::ReduceTable* table);   \
  void fill_float8_##level(commlib::ReduceTable* table);   \
  void fill_integers_##level(commlib::ReduceTable* table); \
  void fill_narrow_##level(commlib::ReduceTable* table);   \
  void fill_norm_##level(commlib::ReduceTable* table);     \
  static const commlib::ReduceTable* table_##level() {     \
    static const commlib::ReduceTable filled = [] {        \
      commlib::ReduceTable table = {};                     \
      table.isa = #level;                                  \
      fill_floats_##level(&table);                         \
      fill_halves_##level(&table);                         \
      fill_float8_##level(&table);                         \
      fill_integers_##level(&table);                       \
      fill_narrow_##level(&table);                         \
      fill_norm_##level(&table);                           \
      return table;                                        \
    }();                                                   \
    return &filled;                                        \
  }

#ifdef __x86_64__
COMMLIB_FOR_LEVEL(v2)
COMMLIB_FOR_LEVEL(v3)
COMMLIB_FOR_LEVEL(v4)
#else
COMMLIB_FOR_LEVEL(portable)
#endif

namespace commlib {

const ReduceTable* reduce_table(const char* isa) {
  const bool any = !isa || !*isa || !std::strcmp(isa, "auto");
#ifdef __x86_64__
  const auto wants = [&](const char* level) { return any || !std::strcmp(isa, level); };
  __builtin_cpu_init();
  const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512cd");
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  if (v4 && wants("v4")) return table_v4();
  if (v3 && wants("v3")) return table_v3();
  if (v2 && wants("v2")) return table_v2();
  return nullptr;
#else
  return any ? table_portable() : nullptr;
#endif
}

}  // namespace commlib
