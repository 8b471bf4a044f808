#!/bin/sh
# check.sh COMPILER CASE.cpp [extra compiler arguments..]
# A case says in its first lines what the compiler must answer:
#   // expect: A01 N09     ids of rules, each in one line of its own; an id that is due twice is there twice
#   // says: reached by rung 1 of oom::ladder: [A01]     words that stand in one of the error lines; any number of such lines
#   // errors: 3           number of error lines; without it, the number of ids
# Without KEEL_TWIN it must fail with just these errors, one of them first; with KEEL_TWIN it must compile in silence.

if [ $# -lt 2 ]; then
  echo "usage: $0 COMPILER CASE.cpp [extra compiler arguments..]" >&2
  exit 2
fi
compiler=$1
case_file=$2
shift 2

LC_ALL=C
export LC_ALL
unset GCC_COLORS CLICOLOR_FORCE GCC_EXTRA_DIAGNOSTIC_OUTPUT LANGUAGE

bad_output=
twin_output=
is_wrong=no
wrong() {
  echo "$case_file: $1"
  is_wrong=yes
}

[ -r "$case_file" ] || { echo "$case_file: cannot be read"; exit 1; }
compiler_version=$("$compiler" --version 2>&1) || { echo "$compiler: cannot be run"; exit 1; }
case $compiler_version in
  *clang*) unlimited=-ferror-limit=0 ;;
  *) unlimited=-fmax-errors=0 ;;
esac

compile() {
  "$compiler" -std=c++20 -fsyntax-only -fdiagnostics-color=never -fmessage-length=0 "$unlimited" "$@" "$case_file" 2>&1
}

expected=$(sed -n 's,^// expect:,,p' "$case_file" | tr -s ' \t\r\n' '\n' | sed '/^$/d' | sort)
expected_count=$(printf '%s\n' "$expected" | sed '/^$/d' | wc -l | tr -d ' ')
due=$(sed -n 's,^// errors: *\([0-9][0-9]*\)[[:space:]]*$,\1,p' "$case_file" | head -n 1)
[ -n "$due" ] || due=$expected_count
[ "$expected_count" -gt 0 ] || wrong "no '// expect: ID..' line"
malformed=$(printf '%s\n' "$expected" | grep -v '^[A-Z][A-Z]*[0-9][0-9]*$' | tr '\n' ' ')
[ "$expected_count" -eq 0 ] || [ -z "$malformed" ] || wrong "not an id of a rule: $malformed"

if bad_output=$(compile "$@"); then
  wrong "compiles, but must break: $(printf "%s\n" "$expected" | tr "\n" " ")"
else
  # A compiler that takes a text that is computed says all sentences in one error, each in a line of its own.
  error_lines=$(printf '%s\n' "$bad_output" | grep -E '^([^[:space:]].*: )?(fatal )?error: |^(reached by [^[]*: )?\[[A-Z]+[0-9]+\] ')
  # One that takes literals alone names the text in a type, clang in pieces.
  error_lines=$(printf '%s\n' "$error_lines" |
    sed -E '/broken_rule</{s/: error: .*broken_rule<(keel::rule::)?piece/: error: piece/;s/(keel::rule::)?piece<[0-9]+>\{"//g;s/"\}, //g;s/"\}>.*$//;}')
  found_count=$(printf '%s\n' "$error_lines" | sed '/^$/d' | wc -l | tr -d ' ')
  [ "$found_count" -eq "$due" ] || wrong "$found_count error lines, expected $due"

  for id in $(printf '%s\n' "$expected" | uniq); do
    times_due=$(printf '%s\n' "$expected" | grep -c -x -F "$id")
    times_found=$(printf '%s\n' "$error_lines" | grep -c -F "[$id]")
    times_fixed=$(printf '%s\n' "$error_lines" | grep -F "[$id]" | grep -c -F 'Fix: ')
    [ "$times_found" -eq "$times_due" ] || wrong "[$id] in $times_found error lines, expected $times_due"
    [ "$times_fixed" -eq "$times_found" ] || wrong "[$id] without 'Fix: '"
  done

  for id in $(printf '%s\n' "$error_lines" | grep -o '\[[A-Z][A-Z]*[0-9][0-9]*\]' | tr -d '[]' | sort -u); do
    printf '%s\n' "$expected" | grep -q -x -F "$id" || wrong "[$id] was not expected"
  done

  said=$(mktemp) || exit 1
  sed -n 's,^// says: ,,p' "$case_file" > "$said"
  while IFS= read -r words; do
    printf '%s\n' "$error_lines" | grep -q -F "$words" || wrong "no error line says: $words"
  done < "$said"
  rm -f "$said"

  # What the user reads of a rule: one sentence that fits a screen, in names that can be typed.
  sentences=$(printf '%s\n' "$error_lines" | grep -F 'Fix: ' | grep -v 'policies in one recipe: only one can apply' | sed -E "s/^.*static assertion failed( due to requirement '.*')?: //;s/^.*: error: \[/[/")
  longest=$(printf '%s\n' "$sentences" | awk '{ if (length > n) n = length } END { print n + 0 }')
  [ "$longest" -le 160 ] || wrong "a sentence has $longest characters, more than 160"
  ! printf '%s\n' "$sentences" | grep -q -E 'detail::|rule::|KEEL_|_settings' || wrong "a sentence names something internal"

  first_line=$(printf '%s\n' "$error_lines" | head -n 1)
  first_is_expected=no
  for id in $expected; do
    case $first_line in
      *"[$id]"*) first_is_expected=yes ;;
    esac
  done
  [ $first_is_expected = yes ] || wrong "the first error is another one: $first_line"
fi

if ! twin_output=$(compile -DKEEL_TWIN -Wall -Wextra "$@"); then
  wrong "the twin does not compile"
elif [ -n "$twin_output" ]; then
  wrong "the twin compiles with a diagnostic"
fi

if [ $is_wrong = yes ]; then
  printf '%s\n' "-- output of $compiler without KEEL_TWIN:" "$bad_output" "-- output with KEEL_TWIN:" "$twin_output" "--"
  exit 1
fi
