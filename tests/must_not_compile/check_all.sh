#!/bin/sh
# check_all.sh COMPILER [extra compiler arguments..]: every recipe case by one compiler, after the harness's self-test.
here=$(dirname "$0")
sh "$here/self_test.sh" "$@" || exit 1
failed=0
count=0
compiler=$1
shift
for one in "$here"/cases/*.cpp; do
  count=$((count + 1))
  sh "$here/check.sh" "$compiler" "$one" "$@" || failed=$((failed + 1))
done
echo "$count cases, $failed failed"
[ "$failed" -eq 0 ]
