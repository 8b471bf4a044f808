// A short text with inline storage, so that printing a recipe allocates no string and includes no stream header.
#pragma once

// The C headers, because <charconv> alone would double the number of instantiations for a recipe.
#include <stdio.h>
#include <stdlib.h>

namespace keel {

/// A text of at most `Capacity` bytes; longer text is truncated.
template <int Capacity>
class text {
 public:
  /// Appends text.
  constexpr text& operator<<(char const* words) {
    while (*words != '\0') put(*words++);
    return *this;
  }
  /// Appends a number in decimal digits.
  constexpr text& operator<<(unsigned long long number) {
    char digits[20] = {};
    int count = 0;
    do {
      digits[count++] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    while (count > 0) put(digits[--count]);
    return *this;
  }
  /// Appends a number in decimal digits.
  constexpr text& operator<<(long long number) {
    if (number < 0) put('-');
    return *this << (number < 0 ? 0ULL - static_cast<unsigned long long>(number) : static_cast<unsigned long long>(number));
  }
  /// Appends a number in decimal digits.
  constexpr text& operator<<(int number) { return *this << static_cast<long long>(number); }
  /// Appends the shortest decimal representation that reads back as the same number, with a point in any locale.
  text& operator<<(double number) {
    constexpr double exact = 1e15;
    if (number > -exact && number < exact && number == static_cast<double>(static_cast<long long>(number))) {
      return *this << static_cast<long long>(number);
    }
    char digits[40];
    for (int precision = 1; precision <= 17; ++precision) {
      ::snprintf(digits, sizeof digits, "%.*g", precision, number);
      if (::strtod(digits, nullptr) == number) break;
    }
    for (char const* letter = digits; *letter != '\0'; ++letter) {
      if ((*letter & 0xc0) == 0x80) continue;  // another byte of the locale's decimal point
      bool const is_part =
          (*letter >= '0' && *letter <= '9') || (*letter >= 'a' && *letter <= 'z') || *letter == '-' || *letter == '+';
      put(is_part ? *letter : '.');
    }
    return *this;
  }

  /// Appends blanks up to this column.
  constexpr void pad_to(int column) {
    while (size_ < column) put(' ');
  }
  /// Returns the null-terminated text.
  constexpr char const* c_str() const { return data_; }
  /// Returns a pointer to the first character.
  constexpr char const* data() const { return data_; }
  /// Returns the size in bytes.
  constexpr int size() const { return size_; }
  /// Writes the text to any stream.
  template <class Stream>
    requires requires(Stream& stream, char const* words, int size) { stream.write(words, size); }
  friend Stream& operator<<(Stream& stream, text const& self) {
    stream.write(self.data_, self.size_);
    return stream;
  }

 private:
  constexpr void put(char letter) {
    if (size_ < Capacity) data_[size_++] = letter;
  }

  int size_ = 0;
  char data_[Capacity + 1] = {};
};

/// Large enough for the description of one slot.
using slot_text = text<512>;
/// Large enough for the description of a recipe.
using recipe_text = text<4096>;

namespace detail {

constexpr int length(char const* text) {
  int count = 0;
  while (text[count] != '\0') ++count;
  return count;
}
constexpr bool is_same(char const* one, char const* other) {
  while (*one != '\0' && *one == *other) ++one, ++other;
  return *one == *other;
}
constexpr bool begins_with(char const* text, char const* words) {
  while (*words != '\0') {
    if (*text++ != *words++) return false;
  }
  return true;
}
constexpr bool contains(char const* text, char const* words) {
  for (; *text != '\0'; ++text) {
    if (begins_with(text, words)) return true;
  }
  return false;
}

}  // namespace detail
}  // namespace keel
