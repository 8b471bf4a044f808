#!/bin/sh
# self_test.sh COMPILER INCLUDE_ARGS..
# Shows that check.sh can fail: cases that it must reject, each for the reason that it names, and cases that it must accept.

if [ $# -lt 1 ]; then
  echo "usage: $0 COMPILER INCLUDE_ARGS.." >&2
  exit 2
fi
compiler=$1
shift
here=$(dirname "$0")
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
case_file=
wrong_verdicts=0

# new_case NAME "HEADER": the case's code is standard input.
new_case() {
  case_file=$folder/$1.cpp
  {
    printf '%s\n' "$2" '#include <keel/recipe.hpp>' \
      'using good = keel::recipe<keel::recompute::reentrant, keel::shard::zero<3>>;' \
      'using breaks_a01 = keel::recipe<keel::recompute::non_reentrant, keel::shard::zero<3>>;' \
      'using breaks_a01_and_n09 =' \
      '    keel::recipe<keel::recompute::non_reentrant, keel::shard::zero<3>, keel::nonfinite::rollback<10>>;'
    cat
  } > "$case_file"
}

misjudged() {
  echo "$(basename "$case_file"): $1"
  echo "$said"
  wrong_verdicts=$((wrong_verdicts + 1))
}

accepts() {
  said=$("$here/check.sh" "$compiler" "$case_file" "$@" 2>&1) || misjudged "must be accepted, is rejected"
}

# rejects "REASON" INCLUDE_ARGS..
rejects() {
  reason=$1
  shift
  if said=$("$here/check.sh" "$compiler" "$case_file" "$@" 2>&1); then
    misjudged "must be rejected, is accepted"
  elif [ "$(printf '%s\n' "$said" | sed '/^-- output/,$d' | wc -l)" -ne 1 ]; then
    misjudged "must be rejected for one reason, is for another number"
  else
    case $(printf '%s\n' "$said" | head -n 1) in
      *"$reason"*) ;;
      *) misjudged "must be rejected because of '$reason'" ;;
    esac
  fi
}

new_case one_rule '// expect: A01' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
#else
template struct keel::checked<breaks_a01>;
#endif
CASE
accepts "$@"

new_case two_rules '// expect: N09 A01' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
#else
template struct keel::checked<breaks_a01_and_n09>;
#endif
CASE
accepts "$@"

new_case an_error_of_another_kind_comes_after '// expect: A01
// errors: 2' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
#else
template struct keel::checked<breaks_a01>;
int never_declared_before = not_declared;
#endif
CASE
accepts "$@"

new_case an_error_of_another_kind_comes_first '// expect: A01
// errors: 2' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
#else
int never_declared_before = not_declared;
template struct keel::checked<breaks_a01>;
#endif
CASE
rejects 'the first error is another one' "$@"

new_case bad_half_compiles '// expect: A01' << 'CASE'
template struct keel::checked<good>;
CASE
rejects 'compiles, but must break: A01 ' "$@"

new_case one_error_too_many '// expect: A01' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
#else
template struct keel::checked<breaks_a01>;
int never_declared_before = not_declared;
#endif
CASE
rejects '2 error lines, expected 1' "$@"

new_case one_error_too_few '// expect: A01
// errors: 2' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
#else
template struct keel::checked<breaks_a01>;
#endif
CASE
rejects '1 error lines, expected 2' "$@"

new_case one_rule_that_nobody_expects '// expect: N09
// errors: 2' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
#else
template struct keel::checked<breaks_a01_and_n09>;
#endif
CASE
rejects '[A01] was not expected' "$@"

new_case no_fix '// expect: A01' << 'CASE'
#ifndef KEEL_TWIN
static_assert(!keel::valid<good>, "[A01] this says what is wrong and not what to do.");
#endif
CASE
rejects "[A01] without 'Fix: '" "$@"

new_case a_sentence_is_too_long '// expect: A01' << 'CASE'
#ifndef KEEL_TWIN
static_assert(!keel::valid<good>, "[A01] this goes on and on and on and on and on and on and on and on and on and on and on and on and on and on and on and on and on. Fix: keel::recompute::reentrant.");
#endif
CASE
rejects 'a sentence has 1' "$@"

new_case a_sentence_is_internal '// expect: A01' << 'CASE'
#ifndef KEEL_TWIN
static_assert(!keel::valid<good>, "[A01] this is wrong. Fix: keel::detail::refused.");
#endif
CASE
rejects 'a sentence names something internal' "$@"

new_case words_that_nobody_says '// expect: A01
// says: reached by rung 1 of oom::ladder: [A01]' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
#else
template struct keel::checked<breaks_a01>;
#endif
CASE
rejects 'no error line says: reached by rung 1' "$@"

new_case words_that_are_said '// expect: A01
// says: reached by rung 1 of oom::ladder: [A01]' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
#else
template struct keel::checked<keel::recipe<
    keel::shard::zero<3>, keel::oom::ladder<keel::oom::enable_recompute<keel::recompute::non_reentrant>, keel::oom::give_up>>>;
#endif
CASE
accepts "$@"

new_case one_id_in_two_lines '// expect: A01
// errors: 2' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
#else
struct mine : breaks_a01 {};
template struct keel::checked<breaks_a01>;
template struct keel::checked<mine>;
#endif
CASE
rejects '[A01] in 2 error lines, expected 1' "$@"

new_case twin_does_not_compile '// expect: A01' << 'CASE'
template struct keel::checked<breaks_a01>;
CASE
rejects 'the twin does not compile' "$@"

new_case twin_warns '// expect: A01' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
inline void leaves_something_unused() { int unused = 0; }
#else
template struct keel::checked<breaks_a01>;
#endif
CASE
rejects 'the twin compiles with a diagnostic' "$@"

new_case no_header '// expect:' << 'CASE'
#ifndef KEEL_TWIN
#error "a header line names what is expected"
#endif
CASE
said=$("$here/check.sh" "$compiler" "$case_file" "$@" 2>&1) && misjudged "must be rejected, is accepted"

# A wrong id is wrong twice: it is not there, and another one is.
new_case wrong_id '// expect: A02' << 'CASE'
#ifdef KEEL_TWIN
template struct keel::checked<good>;
#else
template struct keel::checked<breaks_a01>;
#endif
CASE
if said=$("$here/check.sh" "$compiler" "$case_file" "$@" 2>&1); then
  misjudged "must be rejected, is accepted"
else
  for reason in '[A02] in 0 error lines, expected 1' '[A01] was not expected'; do
    case $said in
      *"$reason"*) ;;
      *) misjudged "must be rejected because of '$reason'" ;;
    esac
  done
fi

case_file=$folder/not_there.cpp
said=$("$here/check.sh" "$compiler" "$case_file" "$@" 2>&1) && misjudged "must be rejected, is accepted"

if [ $wrong_verdicts -ne 0 ]; then
  echo "check.sh misjudged $wrong_verdicts cases"
  exit 1
fi
