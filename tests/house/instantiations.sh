#!/bin/bash
# instantiations.sh COMPILER
# Gates the compiler's work on a recipe by the number of template specialisations, which no busy machine changes: of one recipe,
# of each further recipe, and of each further rule. g++ counts them; another compiler skips.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
compiler=$1
if ! "$compiler" -fstats -fsyntax-only -x c++ /dev/null > /dev/null 2>&1; then
  echo "SKIPPED: $compiler does not count template specialisations, g++ does"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

count() {
  "$compiler" -std=c++20 -fsyntax-only -fstats "-I$root/include" "$1" 2>&1 |
    sed -n 's/^[a-z]*_specializations: .* \([0-9][0-9]*\) elements.*/\1/p' | awk '{ sum += $1 } END { print sum + 0 }'
}
with_rules() {
  "$root/benchmarks/many_rules.sh" "$1" > "$folder/rules_$1.cpp"
  count "$folder/rules_$1.cpp"
}

failed=no
within() {
  echo "$1: $2, at most $3"
  [ "$2" -gt 0 ] && [ "$2" -le "$3" ] || failed=yes
}
one=$(count "$root/benchmarks/recipe.cpp")
ten=$(count "$root/benchmarks/ten_recipes.cpp")
at_50=$(with_rules 50)
at_100=$(with_rules 100)
at_200=$(with_rules 200)
at_400=$(with_rules 400)
within "specialisations of one recipe with all rules" "$one" 2900
within "of each further recipe" $(((ten - one) / 9)) 96
within "of each further rule, in hundredths" $(((at_400 - at_50) * 100 / 350)) 250
# No worse than linear: the second hundred rules cost what the fourth does.
within "of rules 200 to 400, in percent of twice those of 100 to 200" $(((at_400 - at_200) * 100 / (2 * (at_200 - at_100)))) 105
[ $failed = no ]
