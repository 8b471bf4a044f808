#!/bin/sh
# self_test.sh COMPILER INCLUDE_ARGS..
# Shows that check.sh can fail: cases that it must reject for one reason each, between cases that it must accept.

if [ $# -lt 1 ]; then
  echo "usage: $0 COMPILER INCLUDE_ARGS.." >&2
  exit 2
fi
compiler=$1
shift
check=$(dirname "$0")/check.sh
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
wrong_verdicts=0

# verdict accept|reject NAME [words that the reason has], the case on standard input
verdict() {
  due=$1
  name=$2
  reason=$3
  {
    cat
    printf '%s\n' 'template struct keel::checked<mine>;'
  } > "$folder/$name.cpp"
  if said=$("$check" "$compiler" "$folder/$name.cpp" "${@:-}" 2>&1); then found=accept; else found=reject; fi
  if [ $found != "$due" ]; then
    echo "$name: check.sh must $due this, but its verdict is $found"
    echo "$said"
    wrong_verdicts=$((wrong_verdicts + 1))
  fi
}
