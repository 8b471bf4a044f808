#!/bin/sh
# event_table.sh [--write] [COMPILER]
# Compares the table of events in include/keel/trainer/events.md, between its two markers, with run_event_table.hpp, or writes it.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
page=$root/include/keel/trainer/events.md
mode=compare
if [ "${1:-}" = --write ]; then
  mode=write
  shift
fi
compiler=${1:-g++}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$compiler" -std=c++20 -I"$root/include" "$root/tests/house/event_table.cpp" -o "$folder/event_table"
"$folder/event_table" >"$folder/table"
grep -q '^<!-- events -->$' "$page" || { echo "include/keel/trainer/events.md has no line <!-- events -->"; exit 1; }
awk -v table="$folder/table" '
  /^<!-- events -->$/ { print; print ""; while ((getline line < table) > 0) print line; print ""; inside = 1 }
  /^<!-- end of events -->$/ { inside = 0 }
  !inside && !/^<!-- events -->$/ { print }
' "$page" >"$folder/events.md"
if [ $mode = write ]; then
  cp "$folder/events.md" "$page"
elif ! diff -u "$page" "$folder/events.md"; then
  echo "the table of events is not run_event_table.hpp: tests/house/event_table.sh --write"
  exit 1
fi
