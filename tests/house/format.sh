#!/usr/bin/env bash
# format.sh ROOT [--write]: the headers are as clang-format 19 and .clang-format write them; --write makes them so. Where this
# machine has another clang-format, whose output differs, it says SKIPPED and exits with 77.
set -euo pipefail
root=$1
if ! command -v clang-format-19 >/dev/null; then
  echo "SKIPPED: there is no clang-format-19 here, and other versions format differently."
  exit 77
fi
cd "$root"
mapfile -t headers < <(find include -name '*.hpp' -o -name '*.ipp' -o -name '*.cpp' | sort)
if [ "${2:-}" = --write ]; then
  clang-format-19 -i "${headers[@]}"
  exit
fi
# The test can fail.
if printf 'int  x ;\n' | clang-format-19 --dry-run --Werror --assume-filename=include/keel/keel.hpp >/dev/null 2>&1; then
  echo "self test: clang-format-19 finds nothing in a badly formatted line"
  exit 1
fi
clang-format-19 --dry-run --Werror "${headers[@]}" || {
  echo "tests/house/format.sh . --write formats them."
  exit 1
}
echo "${#headers[@]} headers are formatted"
