// A short text that can be a template argument and a setting, and the name of a custom policy in it.
#pragma once

namespace keel {

/// At most 47 bytes, with a zero after them.
struct short_name {
  static constexpr int longest = 47;  ///< bytes without the zero
  char letters[longest + 1] = {};     ///< the text, with zeros after it

  constexpr short_name() = default;
  /// A literal of at most 47 bytes.
  template <int Size>
    requires(Size <= longest + 1)
  consteval short_name(char const (&name)[Size]) {
    for (int i = 0; i < Size; ++i) letters[i] = name[i];
  }
  /// True without a letter.
  constexpr bool empty() const { return letters[0] == '\0'; }
  friend constexpr bool operator==(short_name const&, short_name const&) = default;
};

namespace detail {

/// Of `scope::mine<1>` it is `mine<1>`, so that a namespace or a function around it does not matter; cut where it is too long.
template <class Type>
constexpr short_name type_name() {
  // "[with Type = scope::mine<1>]" by g++, "[Type = scope::mine<1>]" by clang
  char const* at = __PRETTY_FUNCTION__;
  char const mark[] = "Type = ";
  for (int matched = 0; *at != '\0' && mark[matched] != '\0'; ++at)
    matched = *at == mark[matched] ? matched + 1 : *at == mark[0] ? 1 : 0;
  char const* begin = at;
  int depth = 0;
  for (; *at != '\0' && !(depth == 0 && (*at == ']' || *at == ';')); ++at) {
    if (*at == '<' || *at == '(' || *at == '{') ++depth;
    if (*at == '>' || *at == ')' || *at == '}') --depth;
    if (depth == 0 && *at == ':') begin = at + 1;
  }
  short_name name;
  for (int i = 0; begin + i != at && i < short_name::longest; ++i) name.letters[i] = begin[i];
  return name;
}

/// What the policy calls itself by `static constexpr keel::short_name name{"mine"}`, or its type's name.
template <class Policy>
constexpr short_name name_of() {
  if constexpr (requires { short_name(Policy::name); }) {
    return Policy::name;
  } else {
    return type_name<Policy>();
  }
}

}  // namespace detail
}  // namespace keel
