#!/bin/sh
# metric_table.sh [--write] COMPILER INCLUDE_ARGUMENT..
# Compares the tables of metrics in include/keel/metrics/README.md, each between two markers, with the types of measured_metric.hpp and
# run_metric.hpp and their comments, or writes them.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
metrics=$root/include/keel/metrics
mode=compare
if [ "${1:-}" = --write ]; then
  mode=write
  shift
fi
compiler=${1:-g++}
[ $# -eq 0 ] || shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# -O1 drops the inline functions that would need LibTorch's libraries.
"$compiler" -std=c++20 -O1 -DKEEL_COMPILED -I"$root/include" "$@" "$root/tests/house/metric_table.cpp" -o "$folder/metric_table"
"$folder/metric_table" >"$folder/types"
# A metric's meaning is its comment.
awk '
  /^\/\/\/ / { comment = comment (comment == "" ? "" : " ") substr($0, 5); next }
  match($0, /(key|name) = "[^"]*"/) { split(substr($0, RSTART, RLENGTH), part, "\""); print part[2] "\t" meaning }
  /^struct / { meaning = comment }
  { comment = "" }
' "$metrics/measured_metric.hpp" "$metrics/run_metric.hpp" >"$folder/meanings"
for table in measured computed; do
  grep -q "^<!-- $table metrics -->\$" "$metrics/README.md" || { echo "include/keel/metrics/README.md has no line <!-- $table metrics -->"; exit 1; }
  awk -F '\t' -v table=$table '
    NR == FNR { meaning[$1] = $2; next }
    FNR == 1 {
      if (table == "measured") print "| key | name for sinks | unit | over updates | meaning |\n|---|---|---|---|---|"
      else print "| name for sinks | unit | over updates | over ranks | meaning |\n|---|---|---|---|---|"
    }
    table == "measured" && $1 != "" { print "| `" $1 "` | " ($2 == "" ? "" : "`" $2 "`") " | " $3 " | " $4 " | " meaning[$1] " |" }
    table == "computed" && $1 == "" { print "| `" $2 "` | " $3 " | " $4 " | " $5 " | " meaning[$2] " |" }
  ' "$folder/meanings" "$folder/types" >"$folder/$table"
done
awk -v folder="$folder" '
  /^<!-- (measured|computed) metrics -->$/ { print; print ""; while ((getline line < (folder "/" $2)) > 0) print line; print ""; inside = 1; next }
  /^<!-- end of metrics -->$/ { inside = 0 }
  !inside { print }
' "$metrics/README.md" >"$folder/README.md"
if [ $mode = write ]; then
  cp "$folder/README.md" "$metrics/README.md"
elif ! diff -u "$metrics/README.md" "$folder/README.md"; then
  echo "the tables of metrics are not what the types are: tests/house/metric_table.sh --write"
  exit 1
fi
