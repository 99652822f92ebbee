// A paged cache and the rows that go into it, as pages, slots and heads whatever their layout is.
#pragma once

#include "kernels/tensors.h"

namespace commlib::kernels {

// A cache as the kernels see it; strides are in elements.
struct Cache {
  u8* data;
  i64 pages, page_size, heads, width;  // width of a head
  i64 to_page, to_slot, to_head;

  i64 slots() const { return pages * page_size; }
};

// Rows of K or V, likewise.
struct Rows {
  u8* data;
  i64 count, heads, width;
  i64 to_row, to_head;
};

inline void last_is_dense(const Tensor& tensor, const char* name) {
  if (tensor.size(-1) <= 1 || tensor.stride(-1) == 1) return;
  fail("ValueError", "the elements in the last dimension of ", name, " are ", tensor.stride(-1),
       " apart, but must be 1; make ", name, " contiguous there");
}

// A cache is written: an expanded one would keep only the last row.
inline void is_not_expanded(const Tensor& cache, const char* name) {
  for (int d = 0; d < cache.ndim(); ++d) {
    if (cache.size(d) <= 1 || cache.stride(d) != 0) continue;
    fail("ValueError", name, " is expanded: all ", cache.size(d), " in its dimension ", d,
         " are the same memory; pass a cache with memory for each");
  }
}

inline Cache cache_of(const Tensor& cache, const char* name, bool hnd) {
  const int dims = cache.ndim();
  if (dims < 2 || dims > 4) {
    fail("ValueError", name, " has ", counted(dims, "dimension"),
         ", but a cache is [slots, width], [slots, heads, head_dim] or pages of 4 "
         "dimensions; view it as one of them");
  }
  last_is_dense(cache, name);
  is_not_expanded(cache, name);
  u8* data = cache.data();
  if (dims == 2) return {data, cache.size(0), 1, 1, cache.size(1), cache.stride(0), 0, 0};
  const int slot = hnd ? 2 : 1, head = dims == 3 ? 1 : 3 - slot;
  if (dims == 3) {
    return {data,          cache.size(0),   1, cache.size(1),
            cache.size(2), cache.stride(0), 0, cache.stride(1)};
  }
  return {data,          cache.size(0),   cache.size(slot),   cache.size(head),
          cache.size(3), cache.stride(0), cache.stride(slot), cache.stride(head)};
}

inline Rows rows_of(const Tensor& rows, const char* name) {
  if (rows.ndim() != 2 && rows.ndim() != 3) {
    fail("ValueError", name, " has ", counted(rows.ndim(), "dimension"),
         ", but store takes [rows, width] or [rows, heads, head_dim]; reshape it");
  }
  last_is_dense(rows, name);
  // Of one row, or of none, the stride means nothing.
  const i64 to_row = rows.size(0) > 1 ? rows.stride(0) : 0;
  if (rows.ndim() == 2) return {rows.data(), rows.size(0), 1, rows.size(1), to_row, 0};
  return {rows.data(), rows.size(0), rows.size(1), rows.size(2), to_row, rows.stride(1)};
}

// Gives what is flat the heads of the other.
inline void match(Cache* cache, Rows* rows, const char* name) {
  const i64 width = cache->heads * cache->width;
  if (rows->heads == 1 && rows->width == width) {
    *rows = {rows->data, rows->count, cache->heads, cache->width, rows->to_row, cache->width};
  } else if (cache->heads == 1 && rows->heads * rows->width == width) {
    cache->heads = rows->heads;
    cache->to_head = cache->width = rows->width;
  } else if (cache->heads != rows->heads || cache->width != rows->width) {
    fail("ValueError", name, " has rows of ", rows->heads, " x ", rows->width, " elements, but ",
         name, "_cache has slots of ", cache->heads, " x ", cache->width, "; pass ", name, " as [",
         rows->count, ", ", width, "] or [", rows->count, ", ", cache->heads, ", ", cache->width,
         "]");
  }
}

// Pages that lie behind each other are one row of slots.
inline bool is_flat(const Cache& cache) {
  return cache.pages <= 1 || cache.page_size == 1 ||
         cache.to_page == cache.page_size * cache.to_slot;
}

inline void page_as(Cache* cache, i64 page_size) {
  if (!is_flat(*cache)) return;
  const i64 stride = cache->page_size == 1 ? cache->to_page : cache->to_slot;
  cache->to_slot = page_size == 1 ? 0 : stride;
  cache->to_page = page_size * stride;
}

// Brings both caches to one page size, which it returns: slots have one number in K and V.
inline i64 share_pages(Cache* k, Cache* v) {
  if (k->slots() != v->slots()) {
    fail("ValueError", "k_cache has ", counted(k->slots(), "slot"), ", but v_cache ", v->slots(),
         "; pass caches of as many slots");
  }
  const i64 page_size = !is_flat(*k) ? k->page_size : !is_flat(*v) ? v->page_size : 1;
  if (!is_flat(*v) && v->page_size != page_size) {
    fail("ValueError", "k_cache has pages of ", counted(page_size, "slot"), ", but v_cache of ",
         v->page_size, "; pass caches of one page size");
  }
  page_as(k, page_size);
  page_as(v, page_size);
  return page_size;
}

// One row of both: what lies behind each other in the cache becomes two.
inline void divide(Cache* k_cache, Cache* v_cache, const Rows& k, const Rows& v, i64 bytes) {
  const i64 has = k_cache->heads * k_cache->width;
  const i64 k_width = k.heads * k.width, v_width = v.heads * v.width;
  if (has != k_width + v_width) {
    fail("ValueError", "k has ", counted(k_width, "element"), " in a row and v ", v_width,
         ", but a slot of k_cache has ", has, ", not their sum; without v_cache both go into it");
  }
  if (k_cache->heads > 1 && k_cache->to_head != k_cache->width) {
    fail("ValueError", "the heads of k_cache are ", counted(k_cache->to_head, "element"),
         " apart, not ", k_cache->width,
         ", but without v_cache a slot must be contiguous; pass such a cache");
  }
  k_cache->heads = 1;
  *v_cache = *k_cache;
  k_cache->width = k_width;
  v_cache->width = v_width;
  v_cache->data += k_width * bytes;
}

}  // namespace commlib::kernels
