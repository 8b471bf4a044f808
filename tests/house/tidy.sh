#!/usr/bin/env bash
# tidy.sh ROOT ARGUMENTS..: clang-tidy 19 finds nothing in a translation unit with a trainer, by the checks of .clang-tidy.
# ARGUMENTS are the compiler's, for LibTorch. Without clang-tidy 19, whose checks differ from other versions', it says SKIPPED and exits with 77.
set -euo pipefail
root=$1
shift
if ! command -v clang-tidy-19 >/dev/null; then
  echo "SKIPPED: there is no clang-tidy-19 here, and other versions find other things."
  exit 77
fi
cd "$root"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# The test can fail.
mkdir -p "$folder/include/keel"
printf '#pragma once\ninline void f() {\n  try {\n    throw 1;\n  } catch (int) {\n  }\n}\n' >"$folder/include/keel/bad.hpp"
printf '#include <keel/bad.hpp>\n' >"$folder/bad.cpp"
if clang-tidy-19 --quiet --config-file="$root/.clang-tidy" "$folder/bad.cpp" -- -std=c++20 -I"$folder/include" >/dev/null 2>&1; then
  echo "self test: an empty catch in a header must be found"
  exit 1
fi
clang-tidy-19 --quiet --config-file=.clang-tidy examples/trainer.cpp -- -std=c++20 -Iinclude "$@" 2>"$folder/notes" || {
  tail -n 5 "$folder/notes"
  exit 1
}
