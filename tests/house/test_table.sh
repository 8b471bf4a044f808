#!/bin/sh
# test_table.sh BUILD [--write]: compares the table of tests in tests/README.md, between its two markers, with what CMake knows in BUILD, or
# writes it. Tests of tests/run --all --long alone are not in it.
set -eu
build=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
page=$root/tests/README.md
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{
  for tier in quick run all; do
    case $tier in
      quick) echo '| `tests/run --quick` | holds |' && echo '|---|---|' ;;
      run) echo && echo '| `tests/run`, also | holds |' && echo '|---|---|' ;;
      all) echo && echo '| `tests/run --all`, also | holds |' && echo '|---|---|' ;;
    esac
    awk -F '|' -v tier=$tier '$1 == tier { printf "| `%s` | %s |\n", $2, $4 == "" ? "" : $4 " cases" }' "$build/tests/tests.list" | LC_ALL=C sort
  done
} >"$folder/table"
awk -v table="$folder/table" '
  /^<!-- tests -->$/ { print; print ""; while ((getline line < table) > 0) print line; print ""; inside = 1 }
  /^<!-- end of tests -->$/ { inside = 0 }
  !inside && !/^<!-- tests -->$/ { print }
' "$page" >"$folder/README.md"
if [ "${2:-}" = --write ]; then
  cp "$folder/README.md" "$page"
elif ! diff -u "$page" "$folder/README.md"; then
  echo "the table of tests is not what tests/CMakeLists.txt says: tests/house/test_table.sh $build --write"
  exit 1
fi
