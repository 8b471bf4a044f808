#!/usr/bin/env bash
# headers_stand_alone.sh ONE_IN CXX INCLUDE [compiler arguments..]: each header of keel compiles alone and twice, without a warning,
# so that no user has to know what to include before it. Of those on LibTorch, which take long, one in ONE_IN is compiled; which
# these are changes with the headers.
set -euo pipefail
if [ $# -lt 3 ]; then
  echo "usage: $0 ONE_IN CXX INCLUDE [compiler arguments..]" >&2
  exit 1
fi
one_in=$1
compiler=$2
include=$3
shift 3

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$include" && find keel -name '*.hpp' -o -name '*.ipp' | sort) > "$folder/headers"
seed=$(cd "$include" && cat $(cat "$folder/headers") | cksum | cut -d ' ' -f 1)
awk -v one_in="$one_in" -v seed="$((seed % one_in))" '
  /^keel\/(policy|config|rule|recipe)\// || n++ % one_in == seed' "$folder/headers" > "$folder/chosen"
mv "$folder/chosen" "$folder/headers"
count=$(wc -l < "$folder/headers")
[ "$count" -gt 0 ] || {
  echo "$include/keel has no headers" >&2
  exit 1
}

# The compiler's words go to a file first, so that those of two headers do not mix.
cat > "$folder/compile" << 'COMPILE'
folder=$1 compiler=$2 include=$3 header=${*: -1}
said=$folder/${header//\//+}.said
compiles() {
  printf '#include <%s>\n#include <%s>\n' "$header" "$header" |
    "$compiler" -x c++ -fsyntax-only -std=c++20 -Wall -Wextra -Werror "$@" - > "$said" 2>&1 || mv "$said" "$said.wrong"
}
# With its bodies, and where these are compiled once for all; a file of bodies is seen by its header, and there.
case $header in *.ipp) ;; *) compiles "-I$include" "${@:4:$#-4}" ;; esac
case $header in
  keel/policy/* | keel/config/* | keel/rule/* | keel/recipe/*) ;;
  *) [ -f "$said.wrong" ] || compiles -DKEEL_COMPILED "-I$include" "${@:4:$#-4}" ;;
esac
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
