// Blocks of elements as floats, and floats as elements: rounded to nearest even. What is read and
// what is written are apart. Elements may start anywhere.
#pragma once

#include "halves.h"

namespace {

constexpr size_t kBlockFloats = 256;  // of a block, for those who keep them in L1

struct BlocksOfFloat {
  typedef float Word __attribute__((aligned(1), may_alias));

  static void widen(float* out, const unsigned char* in, size_t count) {
    const Word* words = reinterpret_cast<const Word*>(in);
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) out[i] = words[i];
  }
  static void round(unsigned char* out, const float* in, size_t count) {
    Word* words = reinterpret_cast<Word*>(out);
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) words[i] = in[i];
  }
};

struct BlocksOfBFloat16 {
  typedef uint16_t Word __attribute__((aligned(1), may_alias));

  static void widen(float* out, const unsigned char* in, size_t count) {
    const Word* words = reinterpret_cast<const Word*>(in);
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) out[i] = float_of(uint32_t(words[i]) << 16);
  }
  static void round(unsigned char* out, const float* in, size_t count) {
    Word* words = reinterpret_cast<Word*>(out);
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i)
      words[i] = static_cast<uint16_t>(BFloat16::round(in[i]) >> 16);
  }
};

// The codec takes whole words; what does not fill one travels through one of its own.
struct BlocksOfFloat16 {
  using Word = Float16::Word;
  static constexpr size_t kOfWord = Float16::kLanes;

  static void widen_word(float* out, const Word& word) {
#ifdef __F16C__
    const Float16::Acc wide = Float16::load(word);
    memcpy(out, &wide, sizeof(wide));
#else
    out[0] = Float16::load_low(word);
    out[1] = Float16::load_high(word);
#endif
  }
  static Word round_word(const float* in) {
#ifdef __F16C__
    Float16::Acc wide;
    memcpy(&wide, in, sizeof(wide));
    return Float16::store(wide);
#else
    return Float16::store(in[0], in[1]);
#endif
  }
  static void widen(float* out, const unsigned char* in, size_t count) {
    const Word* words = reinterpret_cast<const Word*>(in);
    const size_t whole = count / kOfWord, rest = count % kOfWord;
    for (size_t i = 0; i < whole; ++i) widen_word(out + i * kOfWord, words[i]);
    if (rest == 0) return;
    Word last{};
    float wide[kOfWord];
    memcpy(&last, words + whole, rest * sizeof(uint16_t));
    widen_word(wide, last);
    memcpy(out + whole * kOfWord, wide, rest * sizeof(float));
  }
  static void round(unsigned char* out, const float* in, size_t count) {
    Word* words = reinterpret_cast<Word*>(out);
    const size_t whole = count / kOfWord, rest = count % kOfWord;
    for (size_t i = 0; i < whole; ++i) words[i] = round_word(in + i * kOfWord);
    if (rest == 0) return;
    float wide[kOfWord] = {};
    memcpy(wide, in + whole * kOfWord, rest * sizeof(float));
    const Word last = round_word(wide);
    memcpy(words + whole, &last, rest * sizeof(uint16_t));
  }
};

}  // namespace
