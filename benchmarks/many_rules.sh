#!/bin/sh
# many_rules.sh COUNT: prints a program that judges one recipe by COUNT rules, for the growth of the compiler's work.
count=$1
cat << 'PROGRAM'
#include <keel/recipe.hpp>
#include <keel/rule/detail/text_begin.inc>
using namespace keel::literals;
PROGRAM
i=0
while [ "$i" -lt "$count" ]; do
  echo "struct R$i {"
  echo "  KEEL_RULE_TEXT(\"R$i\", \"nobody\", \"two things that cannot be together, and why not. Fix: keel::accumulate<$i>, or neither of them.\");"
  echo "  static constexpr bool broken(keel::config const& c) { return c.accumulate.count == -$i - 1 && c.clip.limit > $i.0; }"
  echo "};"
  i=$((i + 1))
done
echo "using rules = keel::rule::list<"
i=0
while [ "$i" -lt "$count" ]; do
  [ "$i" -eq 0 ] || echo ","
  printf 'R%s' "$i"
  i=$((i + 1))
done
cat << 'PROGRAM'
>;
struct mine : keel::recipe<keel::accumulate<4>, keel::clip::global_norm<1.0>, keel::checkpoint::every<500_steps>> {};
struct door {
  template <class>
  using rules = ::rules;
};
using verdict = keel::detail::verdict_of<mine, door>;
static_assert(sizeof(verdict) > 0);
PROGRAM
