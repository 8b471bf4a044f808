#!/bin/bash
# rule_mutation.sh COMPILER [ID..]
# Takes away the predicate of one rule after the other, in a copy of the two lower floors, and demands that a test notices:
# the rule's must-not-compile cases, or the static examples where it has none.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
compiler=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# mutate ID HEADER: that rule says of every configuration that it is kept.
mutate() {
  awk -v rule="$1" '
    $0 ~ "^struct " rule " \\{" { inside = 1 }
    inside && /static constexpr bool broken\(config const&/ { sub(/\{/, "{ if (true) return false;"); changed = 1; inside = 0 }
    { print }
    END { exit changed ? 0 : 1 }' "$2" > "$2.mutated" && mv "$2.mutated" "$2"
}

notices() {
  local id=$1 header=$2 copy=$folder/$1
  mkdir -p "$copy/keel"
  cp -r "$root"/include/keel/{policy,config,recipe,rule,recipe.hpp} "$copy/keel/"
  if ! mutate "$id" "$copy/keel/rule/$header"; then
    echo "$id: its predicate was not found in $header"
    return 1
  fi
  local cases=("$root"/tests/must_not_compile/cases/"$id"_*.cpp)
  local noticed=no
  if [ -e "${cases[0]}" ]; then
    for one in "${cases[@]}"; do
      sh "$root/tests/must_not_compile/check.sh" "$compiler" "$one" "-I$copy" > /dev/null || noticed=yes
      [ $noticed = no ] || break
    done
  else
    for one in "$root"/tests/static/*.cpp "$root"/tests/static/rules/*.cpp; do
      [ -e "$one" ] || continue
      "$compiler" -std=c++20 -fsyntax-only "-I$copy" "$one" > /dev/null 2>&1 || noticed=yes
      [ $noticed = no ] || break
    done
  fi
  rm -rf "$copy"
  if [ $noticed = no ]; then
    echo "$id: its predicate can go, and no test fails"
    return 1
  fi
}
export -f mutate notices
export root compiler folder

# The families that the catalogue judges by, without what this version only lacks a mechanism for (U) and without the three that
# judge keel::accept, which have no predicate of their own.
cd "$root/include/keel/rule"
for header in *.hpp; do
  case $header in not_implemented.hpp | rules_without_predicate.hpp | rule.hpp) continue ;; esac
  awk -v header="$header" '
    /^struct [A-Z][0-9][0-9] \{/ { id = $2 }
    id != "" && /static constexpr bool broken\(config const& c\)/ { print id, header; id = "" }' "$header"
done > "$folder/rules"
if [ $# -gt 0 ]; then
  grep -E "^($(IFS='|'; echo "$*")) " "$folder/rules" > "$folder/wanted" || { echo "no such rule: $*"; exit 1; }
  mv "$folder/wanted" "$folder/rules"
fi
count=$(wc -l < "$folder/rules")
[ "$count" -gt 0 ]
xargs -P "$(nproc)" -L 1 bash -c 'notices "$0" "$1"' < "$folder/rules"
echo "$count predicates taken away one by one; each was noticed by a test"
