// A short text that can be a template argument and a setting; holds the name of a custom policy.
#pragma once

namespace keel {

/// A text of at most 47 bytes, null-terminated.
struct short_name {
  static constexpr int longest = 47;  ///< bytes without the terminating zero
  char letters[longest + 1] = {};     ///< the text, padded with zeros

  constexpr short_name() = default;
  /// Takes a literal of at most 47 bytes.
  template <int Size>
    requires(Size <= longest + 1)
  consteval short_name(char const (&name)[Size]) {
    for (int i = 0; i < Size; ++i) letters[i] = name[i];
  }
  /// True if the text is empty.
  constexpr bool empty() const { return letters[0] == '\0'; }
  friend constexpr bool operator==(short_name const&, short_name const&) = default;
};

namespace detail {

/// Returns the name of a type without its scopes: `mine<1>` for `scope::mine<1>`, so that an enclosing namespace or function does not
/// matter. Truncates long names.
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

/// Returns the name that a policy declares with `static constexpr keel::short_name name{"mine"}`, or the name of its type.
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
