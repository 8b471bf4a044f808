#!/bin/sh
# check_with_torch.sh prepare|CASE.cpp FOLDER COMPILER [compiler arguments..]: check.sh for a case that includes LibTorch. `prepare`
# compiles keel's umbrella header into FOLDER once; each case includes that first, and takes seconds instead of half a minute.
set -eu
what=$1
folder=$2
compiler=$3
shift 3
header=$folder/umbrella.hpp
case $("$compiler" --version) in
  *clang*) compiled=$folder/umbrella.hpp.pch ;;
  *) compiled=$folder/umbrella.hpp.gch ;;
esac
if [ "$what" = prepare ]; then
  mkdir -p "$folder"
  echo '#include <keel/keel.hpp>' >"$header"
  exec "$compiler" -std=c++20 "$@" -x c++-header "$header" -o "$compiled"
fi
exec "$(dirname "$0")/check.sh" "$compiler" "$what" "$@" -include "$header"
