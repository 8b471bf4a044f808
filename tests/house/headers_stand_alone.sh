#!/usr/bin/env bash
# headers_stand_alone.sh CXX INCLUDE [compiler arguments..]: each header of keel compiles alone and twice, without a warning, so
# that no user has to know what to include before it.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: $0 CXX INCLUDE [compiler arguments..]" >&2
  exit 1
fi
compiler=$1
include=$2
shift 2

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$include" && find keel -name '*.hpp' | sort) > "$folder/headers"
count=$(wc -l < "$folder/headers")
[ "$count" -gt 0 ] || {
  echo "$include/keel has no headers" >&2
  exit 1
}

# The compiler's words go to a file first, so that those of two headers do not mix.
cat > "$folder/compile" << 'COMPILE'
folder=$1 compiler=$2 include=$3 header=${*: -1}
said=$folder/${header//\//+}.said
if ! printf '#include <%s>\n#include <%s>\n' "$header" "$header" |
  "$compiler" -x c++ -fsyntax-only -std=c++20 -Wall -Wextra -Werror "-I$include" "${@:4:$#-4}" - > "$said" 2>&1; then
  mv "$said" "$said.wrong"
fi
COMPILE
xargs -P2 -n1 bash "$folder/compile" "$folder" "$compiler" "$include" "$@" < "$folder/headers"

# A header that was not compiled counts as one that does not.
wrong=0
while IFS= read -r header; do
  said=$folder/${header//\//+}.said
  [ ! -f "$said" ] || continue
  wrong=$((wrong + 1))
  echo "-- $header does not compile alone:"
  [ ! -f "$said.wrong" ] || head -n 40 "$said.wrong"
done < "$folder/headers"
if [ "$wrong" -ne 0 ]; then
  echo "$wrong of $count headers do not compile alone"
  exit 1
fi
echo "$count headers compile alone"
