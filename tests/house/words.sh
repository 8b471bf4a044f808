#!/usr/bin/env bash
# words.sh [FOLDER]: no name, comment or message of keel uses a word that the glossary replaces. A test runs it on keel, and on
# lines that must be found.
set -euo pipefail
root=$(cd "${1:-$(dirname "$0")/../..}" && pwd)

# What is banned, and what to write.
banned=(
  '\btold\b|\bhears\b|\bheard\b=a listener is called; a mechanism takes or gets a value'
  '\banew\b=again, from zero, newly'
  '\b([Nn]obody|[Ss]omebody|[Ee]verybody|[Aa]nybody)\b=name who or what it is, or write the sentence without'
  "\bof (its|their|one's) own\b=a separate .., its own .."
  '(?<![Tt]here )\b(is|are|was|were) no (?!longer|more\b)[a-z]=is not a ..'
  '\b[Ii]n silence\b|\bfor ever\b=silently, forever'
  '\bafter all\b=leave it out'
  '\b(step|window) boundary\b=update boundary'
  '\b(told_recipe|rollback_wish|memory_relief|rung_given_back|climb_back|window_conclusion|stood_still|refuse_call|keep_state)\b=the name in the glossary'
  '\bthe [0-9]+\. [a-z]=the fifth ..'
)

found=no
search() {  # FOLDER
  local entry pattern advice lines
  for entry in "${banned[@]}"; do
    pattern=${entry%=*}
    advice=${entry##*=}
    lines=$(cd "$1" && grep -rnP --include='*.hpp' --include='*.cpp' --include='*.md' --include='*.inc' --include='*.ipp' "$pattern" include examples benchmarks README.md || true)
    [ -n "$lines" ] || continue
    found=yes
    printf '%s\n   instead: %s\n' "$lines" "$advice"
  done
}

# The test can fail: each pattern finds its own line, and plain English passes.
sample=$(mktemp -d)
trap 'rm -rf "$sample"' EXIT
mkdir -p "$sample/include" "$sample/examples" "$sample/benchmarks"
touch "$sample/README.md"
for line in 'a run is told' 'it hears of it' 'begins anew' 'nobody asks' 'a line of its own' 'it is no policy' 'in silence' 'not after all' \
            'at a step boundary' 'climb_back<5>' 'the 5. update'; do
  printf '// %s\n' "$line" >"$sample/include/sample.hpp"
  found=no
  search "$sample" >/dev/null
  [ "$found" = yes ] || { echo "self test: '$line' must be found and is not"; exit 1; }
done
printf '// it is no longer a file, and is not one; there is no more; its own line\n' >"$sample/include/sample.hpp"
found=no
search "$sample"
[ "$found" = no ] || { echo "self test: plain English must pass"; exit 1; }

found=no
search "$root"
[ "$found" = no ]
