#!/bin/sh
# guide.sh [--write] [COMPILER]
# Compares the guide in include/keel/diagnose/README.md, between its two markers, with include/keel/diagnose/guide.ipp, or writes it.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
page=$root/include/keel/diagnose/README.md
mode=compare
if [ "${1:-}" = --write ]; then
  mode=write
  shift
fi
compiler=${1:-g++}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$compiler" -std=c++20 -I"$root/include" "$root/tests/house/guide.cpp" -o "$folder/guide"
"$folder/guide" > "$folder/table"
grep -q '^<!-- guide -->$' "$page" || { echo "include/keel/diagnose/README.md has no line <!-- guide -->"; exit 1; }
awk -v table="$folder/table" '
  /^<!-- guide -->$/ { print; print ""; while ((getline line < table) > 0) print line; print ""; inside = 1 }
  /^<!-- end of guide -->$/ { inside = 0 }
  !inside && !/^<!-- guide -->$/ { print }
' "$page" > "$folder/README.md"
if [ $mode = write ]; then
  cp "$folder/README.md" "$page"
elif ! diff -u "$page" "$folder/README.md"; then
  echo "the guide is not what include/keel/diagnose/guide.ipp says: tests/house/guide.sh --write"
  exit 1
fi
