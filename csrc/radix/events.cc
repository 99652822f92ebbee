// Events as they happen, and as JSON.
#include "radix/events.h"

#include <cstring>
#include <utility>

namespace commlib::radix {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

inline uint32_t rotated(uint32_t x, int by) { return x >> by | x << (32 - by); }

// SHA-256 as FIPS 180-4 has it, fed in pieces.
class Sha256 {
 public:
  void feed(const void* data, size_t bytes) {
    const auto* from = static_cast<const uint8_t*>(data);
    total_ += bytes;
    while (bytes > 0) {
      const size_t part = bytes < 64 - filled_ ? bytes : 64 - filled_;
      std::memcpy(block_ + filled_, from, part);
      filled_ += part;
      from += part;
      bytes -= part;
      if (filled_ == 64) mix();
    }
  }

  Digest finish() {
    const uint64_t bits = total_ * 8;
    const uint8_t one = 0x80, zero = 0;
    feed(&one, 1);
    while (filled_ != 56) feed(&zero, 1);
    uint8_t length[8];
    for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
    feed(length, 8);
    Digest digest;
    for (int i = 0; i < 32; ++i)
      digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
  }

 private:
  void mix() {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      w[i] = uint32_t{block_[4 * i]} << 24 | uint32_t{block_[4 * i + 1]} << 16 |
             uint32_t{block_[4 * i + 2]} << 8 | block_[4 * i + 3];
    }
    for (int i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) +
             (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
    }
    uint32_t s[8];
    std::memcpy(s, state_, sizeof(s));
    for (int i = 0; i < 64; ++i) {
      const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
      const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
      const uint32_t low = s[7] + (rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25)) +
                           choice + kRound[i] + w[i];
      const uint32_t high = (rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22)) + majority;
      for (int k = 7; k > 0; --k) s[k] = s[k - 1];
      s[4] += low;
      s[0] = low + high;
    }
    for (int i = 0; i < 8; ++i) state_[i] += s[i];
    filled_ = 0;
  }

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t block_[64];
  size_t filled_ = 0;
  uint64_t total_ = 0;
};

template <class Number>
std::string listed(const std::vector<Number>& numbers) {
  std::string all;
  for (const Number number : numbers) all += (all.empty() ? "[" : ",") + std::to_string(number);
  return all.empty() ? "[]" : all + ']';
}

// Of printable ASCII.
std::string quoted(const std::string& name) {
  std::string all = "\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') all += '\\';
    all += c;
  }
  return all + '"';
}

}  // namespace

Digest chained(const Digest* parent, const void* data, size_t bytes) {
  Sha256 hash;
  if (parent) hash.feed(parent->data(), parent->size());
  hash.feed(data, bytes);
  return hash.finish();
}

Digest digest_of(const Name& space) {
  return chained(nullptr, space.bytes.data(), space.bytes.size());
}

void Events::stored(const Stored& what) {
  close();
  Event event;
  for (size_t i = 0; i < what.pages; ++i) event.hashes.push_back(number_of(what.digests[i]));
  event.tokens.assign(what.tokens, what.tokens + what.count);
  if (what.parent) event.parent = number_of(*what.parent);
  if (what.space.is_set) event.space = what.space.bytes;
  events_.push_back(std::move(event));
}

void Events::close() {
  if (going_.empty()) return;
  events_.push_back({std::exchange(going_, {}), {}, {}, {}});
}

void Events::cleared() {
  going_.clear();
  events_.emplace_back();
}

std::string Events::take() {
  close();
  std::string all;
  for (const Event& event : std::exchange(events_, {})) {
    all += all.empty() ? "[" : ",";
    all += '[' + listed(event.hashes) + ',' + listed(event.tokens) + ',';
    all += event.parent ? std::to_string(*event.parent) : "null";
    all += ',' + (event.space ? quoted(*event.space) : "null") + ']';
  }
  return all.empty() ? "[]" : all + ']';
}

}  // namespace commlib::radix
