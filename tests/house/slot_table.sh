#!/bin/sh
# slot_table.sh [--write] [COMPILER]
# Compares the README's table of slots, between its two markers, with what the slots say of themselves, or writes it.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
mode=compare
if [ "${1:-}" = --write ]; then
  mode=write
  shift
fi
compiler=${1:-g++}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$compiler" -std=c++20 -I"$root/include" "$root/tests/house/slot_table.cpp" -o "$folder/slot_table"
"$folder/slot_table" > "$folder/table"
grep -q '^<!-- slots -->$' "$root/README.md" || { echo "README.md has no line <!-- slots -->"; exit 1; }
awk -v table="$folder/table" '
  /^<!-- slots -->$/ { print; print ""; while ((getline line < table) > 0) print line; print ""; inside = 1 }
  /^<!-- end of slots -->$/ { inside = 0 }
  !inside && !/^<!-- slots -->$/ { print }
' "$root/README.md" > "$folder/README.md"
if [ $mode = write ]; then
  cp "$folder/README.md" "$root/README.md"
elif ! diff -u "$root/README.md" "$folder/README.md"; then
  echo "the README's table of slots is not what the slots say: tests/house/slot_table.sh --write"
  exit 1
fi
