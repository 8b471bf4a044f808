#!/bin/sh
# new_slot.sh COMPILER FLAGS..: adds an imaginary slot with two policies and three options to a copy of the headers: its own header,
# and its include and name in the list of slots. Everything else must follow.
set -eu
compiler=$1
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/tests/house"
cp -r "$root/include" "$folder/include"
cp -r "$root/tests/rule" "$folder/tests/rule"
cp -r "$root/tests/house/new_slot" "$folder/tests/house/new_slot"
cp "$root/tests/house/new_slot/slot.hpp" "$folder/include/keel/policy/tempo.hpp"
list=$folder/include/keel/config/config.hpp
sed -i -e 's,^#include <keel/policy/timeout.hpp>,#include <keel/policy/tempo.hpp>\n&,' -e 's,EACH(timeout),& EACH(tempo),' "$list"
if [ "$(diff "$root/include/keel/config/config.hpp" "$list" | grep -c '^>')" -ne 2 ]; then
  echo "the list of slots is not where this test looks for it: $list"
  exit 1
fi
"$compiler" -std=c++20 -Wall -Wextra -I"$folder/include" "$@" "$folder/tests/house/new_slot/use.cpp" -o "$folder/use"
"$folder/use"
"$compiler" -std=c++20 -I"$folder/include" "$root/tests/house/slot_table.cpp" -o "$folder/table"
"$folder/table" | grep -q '^| `tempo` | `none`, `steady<..>`, `swing<..>` | none |$' || {
  echo "a new slot: is not in the README's table"
  exit 1
}
echo "a new slot is its header and its name in one list"
