#!/bin/sh
# rule_table.sh [--write] [COMPILER]
# Compares include/keel/rule/README.md with what the rules say of themselves, or writes it; then looks for every test that a
# row without a predicate names as its proof.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
table=$root/include/keel/rule/README.md
mode=compare
if [ "${1:-}" = --write ]; then
  mode=write
  shift
fi
compiler=${1:-g++}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$compiler" -std=c++20 -I"$root/include" "$root/tests/house/rule_table.cpp" -o "$folder/rule_table"
"$folder/rule_table" > "$folder/README.md"
if [ $mode = write ]; then
  cp "$folder/README.md" "$table"
elif ! diff -u "$table" "$folder/README.md"; then
  echo "include/keel/rule/README.md is not what the rules say: tests/house/rule_table.sh --write"
  exit 1
fi

missing=0
"$folder/rule_table" --proofs > "$folder/proofs"
while IFS= read -r proof; do
  case $proof in
    must_not_compile.*) ls "$root"/tests/must_not_compile/*cases/"${proof#must_not_compile.}".cpp > /dev/null 2>&1 && continue ;;
    house.*) grep -q "($proof " "$root/tests/CMakeLists.txt" && continue ;;
    *) grep -r -q -F "TEST_CASE(\"$proof\"" "$root/tests" && continue ;;
  esac
  echo "no test has the name that rules_without_predicate.hpp gives as a proof: $proof"
  missing=1
done < "$folder/proofs"
exit $missing
