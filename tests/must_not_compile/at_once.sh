#!/usr/bin/env bash
# at_once.sh COMPILER INCLUDE_ARGS..: in C++26 `static_assert(keel::valid<mine>, keel::reasons<mine>)` is one error, in the user's own
# line, that says each broken rule, and keel::checked is one error, too.
set -euo pipefail
compiler=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  cat "$folder/out" >&2
  echo "$*" >&2
  exit 1
}

cat >"$folder/asked.cpp" <<'END'
static_assert(__cpp_static_assert >= 202306L);
END
if ! "$compiler" -std=c++26 -fsyntax-only "$folder/asked.cpp" 2>"$folder/out"; then
  echo "SKIPPED: $compiler computes no text of a static_assert"
  exit 0
fi

cat >"$folder/case.cpp" <<'END'
#include <keel/recipe.hpp>
struct not_a_policy {};
struct good : keel::recipe<> {};
struct bad : keel::recipe<keel::recompute::non_reentrant, keel::shard::zero<3>, keel::nonfinite::rollback<10>, not_a_policy> {};
#ifdef ASKS
static_assert(keel::valid<TYPE>, keel::reasons<TYPE>);
#else
template struct keel::checked<TYPE>;
#endif
END
for asks in -DASKS -DDEMANDS; do
  "$compiler" -std=c++26 -fsyntax-only -Wall -Wextra -Werror "$@" "$asks" -DTYPE=good "$folder/case.cpp" >"$folder/out" 2>&1 ||
    fail "a valid recipe does not compile"
  if "$compiler" -std=c++26 -fsyntax-only "$@" "$asks" -DTYPE=bad "$folder/case.cpp" >"$folder/out" 2>&1; then fail "a bad recipe compiles"; fi
  [ "$(grep -c ' error: ' "$folder/out")" -eq 1 ] || fail "$asks: there is more than one error"
  for words in '[D00]' '[N09]' '[A01]' 'because of not_a_policy'; do
    grep -qF "$words" "$folder/out" || fail "$asks: the error does not say $words"
  done
done
"$compiler" -std=c++26 -fsyntax-only "$@" -DASKS -DTYPE=bad "$folder/case.cpp" >"$folder/out" 2>&1 || true
grep -q "^$folder/case.cpp:6:.* error: " "$folder/out" || fail "the error is not in the user's line"
echo "one error says all"
