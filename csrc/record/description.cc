// The types of layout.h and the names of codes as JSON, for readers of the file.
#include <cstring>
#include <type_traits>

#include "commlib/check.h"
#include "record/file.h"
#include "shm/layout.h"

namespace commlib::record {
namespace {

// "u4": unsigned, of 4 bytes; "s12": text in 12 bytes; a structure by its name.
template <class T>
struct Kind {
  static std::string text_of() {
    return text(std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "i" : "u", sizeof(T));
  }
};
template <class T>
struct Kind<std::atomic<T>> : Kind<T> {};
template <size_t N>
struct Kind<char[N]> {
  static std::string text_of() { return text("s", N); }
};
#define COMMLIB_STRUCTURE(Type)                                  \
  template <>                                                    \
  struct Kind<Type> {                                            \
    static std::string text_of() { return #Type "*1"; }          \
  };                                                             \
  template <size_t N>                                            \
  struct Kind<Type[N]> {                                         \
    static std::string text_of() { return text(#Type, "*", N); } \
  }
COMMLIB_STRUCTURE(Brief);
COMMLIB_STRUCTURE(End);
COMMLIB_STRUCTURE(Total);
COMMLIB_STRUCTURE(Entry);
COMMLIB_STRUCTURE(Wait);
COMMLIB_STRUCTURE(Peer);
COMMLIB_STRUCTURE(Graph);
COMMLIB_STRUCTURE(Gpu);

#define COMMLIB_FIELD(Type, field)                                                               \
  text("\"" #field "\":[", offsetof(Type, field), ",\"", Kind<decltype(Type::field)>::text_of(), \
       "\"]")

template <class... Fields>
std::string structure(const char* name, size_t bytes, const Fields&... fields) {
  std::string all;
  ((all += (all.empty() ? "" : ",") + fields), ...);
  return text("\"", name, "\":{\"bytes\":", bytes, ",\"fields\":{", all, "}}");
}

template <class Name>
std::string names(int count, const Name& name) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text(i ? "," : "", "\"", name(i), "\"");
  return "[" + all + "]";
}

// Which bits of Brief::what each field of shm::Descriptor takes: [first, how many].
#define COMMLIB_BITS(field)                                                                       \
  [] {                                                                                            \
    shm::Descriptor all{};                                                                        \
    --all.field;                                                                                  \
    uint64_t bits;                                                                                \
    std::memcpy(&bits, &all, sizeof(bits));                                                       \
    return text("\"" #field "\":[", __builtin_ctzll(bits), ",", __builtin_popcountll(bits), "]"); \
  }()

std::string fields_of_what() {
  return text("{", COMMLIB_BITS(op), ",", COMMLIB_BITS(dtype), ",", COMMLIB_BITS(redop), ",",
              COMMLIB_BITS(root), ",", COMMLIB_BITS(inner), ",", COMMLIB_BITS(count),
              ",\"width\":", shm::kWidthBits, ",\"elements\":", shm::kElementBits, "}");
}

}  // namespace

std::string description() {
  const auto types = text(
      structure("Brief", sizeof(Brief), COMMLIB_FIELD(Brief, number),
                COMMLIB_FIELD(Brief, entered_ns), COMMLIB_FIELD(Brief, what),
                COMMLIB_FIELD(Brief, algorithm), COMMLIB_FIELD(Brief, site),
                COMMLIB_FIELD(Brief, thread)),
      ",", structure("End", sizeof(End), COMMLIB_FIELD(End, number), COMMLIB_FIELD(End, ns)), ",",
      structure("Total", sizeof(Total), COMMLIB_FIELD(Total, calls), COMMLIB_FIELD(Total, bytes),
                COMMLIB_FIELD(Total, ns)),
      ",",
      structure(
          "Entry", sizeof(Entry), COMMLIB_FIELD(Entry, number), COMMLIB_FIELD(Entry, entered_ns),
          COMMLIB_FIELD(Entry, finished_ns), COMMLIB_FIELD(Entry, what),
          COMMLIB_FIELD(Entry, count), COMMLIB_FIELD(Entry, stream),
          COMMLIB_FIELD(Entry, algorithm), COMMLIB_FIELD(Entry, site), COMMLIB_FIELD(Entry, thread),
          COMMLIB_FIELD(Entry, root), COMMLIB_FIELD(Entry, op), COMMLIB_FIELD(Entry, dtype),
          COMMLIB_FIELD(Entry, redop), COMMLIB_FIELD(Entry, flags), COMMLIB_FIELD(Entry, graph)),
      ",",
      structure("Wait", sizeof(Wait), COMMLIB_FIELD(Wait, thread), COMMLIB_FIELD(Wait, peer),
                COMMLIB_FIELD(Wait, number), COMMLIB_FIELD(Wait, since_ns),
                COMMLIB_FIELD(Wait, message)),
      ",",
      structure("Peer", sizeof(Peer), COMMLIB_FIELD(Peer, pid), COMMLIB_FIELD(Peer, name),
                COMMLIB_FIELD(Peer, number), COMMLIB_FIELD(Peer, what), COMMLIB_FIELD(Peer, waits),
                COMMLIB_FIELD(Peer, waited_ns)),
      ",",
      structure("Graph", sizeof(Graph), COMMLIB_FIELD(Graph, first), COMMLIB_FIELD(Graph, what),
                COMMLIB_FIELD(Graph, over), COMMLIB_FIELD(Graph, calls),
                COMMLIB_FIELD(Graph, kernels), COMMLIB_FIELD(Graph, site)),
      ",",
      structure("Gpu", sizeof(Gpu), COMMLIB_FIELD(Gpu, at_ns), COMMLIB_FIELD(Gpu, over),
                COMMLIB_FIELD(Gpu, waits_in), COMMLIB_FIELD(Gpu, waits_for),
                COMMLIB_FIELD(Gpu, since_ns), COMMLIB_FIELD(Gpu, graph),
                COMMLIB_FIELD(Gpu, left_in), COMMLIB_FIELD(Gpu, left_graph),
                COMMLIB_FIELD(Gpu, left_of_graph), COMMLIB_FIELD(Gpu, what),
                COMMLIB_FIELD(Gpu, left_what)),
      ",",
      structure("Slot", kSlotBytes, COMMLIB_FIELD(Slot, state), COMMLIB_FIELD(Slot, rank),
                COMMLIB_FIELD(Slot, world), COMMLIB_FIELD(Slot, backend), COMMLIB_FIELD(Slot, id),
                COMMLIB_FIELD(Slot, opened_ns), COMMLIB_FIELD(Slot, timeout_s),
                COMMLIB_FIELD(Slot, entered), COMMLIB_FIELD(Slot, finished),
                COMMLIB_FIELD(Slot, messages_made), COMMLIB_FIELD(Slot, waits),
                COMMLIB_FIELD(Slot, peers), COMMLIB_FIELD(Slot, ended_kind),
                COMMLIB_FIELD(Slot, ended), COMMLIB_FIELD(Slot, calls), COMMLIB_FIELD(Slot, gpu),
                COMMLIB_FIELD(Slot, ends), COMMLIB_FIELD(Slot, large), COMMLIB_FIELD(Slot, entries),
                COMMLIB_FIELD(Slot, messages), COMMLIB_FIELD(Slot, graphs_used),
                COMMLIB_FIELD(Slot, graphs)),
      ",",
      structure("Header", pages(sizeof(Header)), COMMLIB_FIELD(Header, pid),
                COMMLIB_FIELD(Header, parent), COMMLIB_FIELD(Header, opened_ns),
                COMMLIB_FIELD(Header, wants_sites), COMMLIB_FIELD(Header, unrecorded),
                COMMLIB_FIELD(Header, watched_until_ns), COMMLIB_FIELD(Header, strings)));
  return text("{\"types\":{", types, "},\"slots\":", kSlots, ",\"what\":", fields_of_what(),
              ",\"ops\":", names(kOps, [](int i) { return name_of(static_cast<Op>(i)); }),
              ",\"dtypes\":", names(kDTypes, [](int i) { return name_of(static_cast<DType>(i)); }),
              ",\"redops\":", names(kRedOps, [](int i) { return name_of(static_cast<RedOp>(i)); }),
              "}");
}

}  // namespace commlib::record
