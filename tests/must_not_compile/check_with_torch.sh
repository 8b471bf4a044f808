#!/bin/sh
# check_with_torch.sh prepare|"NAME.." FOLDER COMPILER [compiler arguments..]: check.sh for cases that include LibTorch, by their names in
# torch_cases/. `prepare` compiles keel's umbrella header into FOLDER once; each case includes that first, and takes seconds instead of
# half a minute.
set -eu
names=$1
folder=$2
compiler=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
header=$folder/umbrella.hpp
case $("$compiler" --version) in
  *clang*) compiled=$folder/umbrella.hpp.pch ;;
  *) compiled=$folder/umbrella.hpp.gch ;;
esac
if [ "$names" = prepare ]; then
  mkdir -p "$folder"
  echo '#include <keel/keel.hpp>' >"$header"
  exec "$compiler" -std=c++20 "$@" -x c++-header "$header" -o "$compiled"
fi
failed=0
for name in $names; do
  sh "$here/check.sh" "$compiler" "$here/torch_cases/$name.cpp" "$@" -include "$header" || failed=$((failed + 1))
done
[ "$failed" -eq 0 ]
