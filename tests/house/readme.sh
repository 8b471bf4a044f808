#!/usr/bin/env bash
# readme.sh ROOT CXX: every snippet of every page is a piece of a compiled file, every change of a recipe that a page shows as
# valid compiles and is implemented, and every quoted error is this compiler's. The first README.md has at most 200 lines.
# Marks before a fence:
#   quote: FILE REGION                       the lines of FILE between its markers REGION
#   refused: FILE REGION, compiles: FILE REGION   a change of the recipe in that region, as a diff
#   said                                     the error of the refused block before it
set -euo pipefail
root=$1
compiler=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export LC_ALL=C
failures=0
fail() {
  echo "README.md: $1"
  failures=$((failures + 1))
}

# Cuts them into numbered blocks: for each marked fence one file with its lines and one with its mark.
readmes=$(cd "$root" && find README.md include -name '*.md' | sort)
(cd "$root" && cat $readmes) | awk -v folder="$folder" '
  /^<!-- .* -->$/ { mark = $0; sub(/^<!-- /, "", mark); sub(/ -->$/, "", mark); next }
  /^```/ && !inside { inside = 1; if (mark != "") { ++count; print mark > (folder "/" count ".mark"); printf "" > (folder "/" count ".text") } next }
  /^```/ && inside { inside = 0; mark = ""; next }
  inside && mark != "" { print > (folder "/" count ".text") }
  !inside && NF { mark = "" }
'

# region FILE REGION: the lines between its markers, without the markers of other regions.
region() {
  awk -v region="// $2" '/^ *\/\/ \[[a-z_]+\]$/ { if (index($0, region)) inside = !inside; next } inside' "$root/$1"
}
# Removes the indentation that all lines share.
without_indentation() {
  awk '
    { line[NR] = $0 }
    /[^ ]/ { match($0, /^ */); if (least == "" || RLENGTH < least) least = RLENGTH }
    END { for (i = 1; i <= NR; ++i) print substr(line[i], least + 1) }'
}
# compile CONDITION: the changed recipe, without LibTorch.
compile() {
  {
    printf '#include <keel/recipe.hpp>\n#include <keel/rule/not_implemented.hpp>\nusing namespace keel::literals;\n'
    cat "$folder/changed"
    printf '%s\n' "$1"
  } >"$folder/changed.cpp"
  "$compiler" -std=c++20 -fsyntax-only -fdiagnostics-color=never -I"$root/include" "$folder/changed.cpp" >"$folder/out" 2>&1
}

blocks=0
for mark_file in "$folder"/*.mark; do
  number=$(basename "$mark_file" .mark)
  mark=$(cat "$mark_file")
  text="$folder/$number.text"
  blocks=$((blocks + 1))
  read -r kind file region <<<"$mark"
  case "$kind" in
    quote:)
      region "$file" "$region" | without_indentation >"$folder/region"
      without_indentation <"$text" | diff -u "$folder/region" - >"$folder/diff" || { fail "the snippet of $file $region is not what the file says:"; cat "$folder/diff"; }
      ;;
    compiles: | refused:)
      region "$file" "$region" >"$folder/recipe"
      old=$(sed -n 's/^[- ]//p' "$text")
      new=$(sed -n 's/^[+ ]//p' "$text")
      old=$old new=$new awk '
        { all = all $0 "\n" }
        END {
          at = index(all, ENVIRON["old"])
          rest = substr(all, at + length(ENVIRON["old"]))
          if (at == 0 || index(rest, ENVIRON["old"])) exit 1
          printf "%s%s%s", substr(all, 1, at - 1), ENVIRON["new"], rest
        }' "$folder/recipe" >"$folder/changed" || fail "these lines are not once in $file $region: $old"
      recipe=$(sed -n 's/^struct \([a-z_]*\) .*/\1/p' "$folder/recipe")
      if [ "$kind" = compiles: ]; then
        compile "template struct keel::checked<$recipe>;
static_assert(keel::detail::verdict_on<keel::rule::rules_not_implemented>(keel::config_of<$recipe>).ok());" ||
          { fail "does not compile, or is not implemented: $new"; cat "$folder/out"; }
      else
        if compile "template struct keel::checked<$recipe>;"; then fail "compiles, and a page says that it does not: $new"; fi
        grep -m1 -o '\[[A-Z][0-9][0-9]\].*' "$folder/out" | sed "s/[\"']$//" >"$folder/words" || true
        next="$folder/$((number + 1)).text"
        [ -s "$folder/words" ] && grep -qF "$(cat "$folder/words")" "$next" || { fail "the error has changed; it is now: $(cat "$folder/words")"; }
      fi
      ;;
    said) ;; # checked with the refused block before it
    *) fail "unknown mark: $mark" ;;
  esac
done
[ "$blocks" -ge 8 ] || fail "only $blocks marked blocks were found; the marks are broken"
[ "$(wc -l <"$root/README.md")" -le 200 ] || fail "more than 200 lines; what explains a folder stands in that folder's README.md"
# Links to files that are there.
for one in $readmes; do
  for link in $(grep -oE '\]\([^)#:]+\)' "$root/$one" | sed 's/^](//; s/)$//'); do
    [ -e "$root/$(dirname "$one")/$link" ] || fail "$one links to $link, which is not there"
  done
done
[ "$failures" -eq 0 ] || exit 1
echo "$blocks blocks of $(echo "$readmes" | wc -l) pages hold"
