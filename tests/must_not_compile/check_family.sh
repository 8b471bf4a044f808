#!/bin/sh
# check_family.sh COMPILER NAME [compiler arguments..]: the recipe cases of one family of rules, NAME_*.cpp or, for a letter, NAME01_*.cpp
# and so on; `all` are all of them. Each goes through check.sh, over a precompiled keel/recipe.hpp.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
compiler=$1
family=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
case $family in
  all) pattern='*' ;;
  ?) pattern="$family"'[0-9][0-9]_*' ;;
  *) pattern="$family"'*' ;;
esac
case $("$compiler" --version) in
  *clang*) compiled=$folder/recipe.hpp.pch ;;
  *) compiled=$folder/recipe.hpp.gch ;;
esac
echo '#include <keel/recipe.hpp>' >"$folder/recipe.hpp"
"$compiler" -std=c++20 "$@" -x c++-header "$folder/recipe.hpp" -o "$compiled"
failed=0
count=0
for case_file in "$here"/cases/$pattern.cpp; do
  [ -e "$case_file" ] || { echo "$family: there is no case"; exit 1; }
  count=$((count + 1))
  sh "$here/check.sh" "$compiler" "$case_file" "$@" -include "$folder/recipe.hpp" || failed=$((failed + 1))
done
echo "$count cases, $failed failed"
[ "$failed" -eq 0 ]
