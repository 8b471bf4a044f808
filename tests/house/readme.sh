#!/usr/bin/env bash
# readme.sh ROOT CXX: every snippet of every page is a piece of a compiled file, every line that they say compiles does, and
# every error that they quote is what this compiler says. The first README.md keeps to 300 lines.
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
'

blocks=0
for mark_file in "$folder"/*.mark; do
  number=$(basename "$mark_file" .mark)
  mark=$(cat "$mark_file")
  text="$folder/$number.text"
  blocks=$((blocks + 1))
  case "$mark" in
    quote:*)
      # quote: FILE [REGION]
      read -r _ file region <<<"$mark"
      awk -v region="// $region" '$0 ~ /^ *\/\// && index($0, region) { inside = !inside; next } inside' "$root/$file" |
        sed -E 's/^  (keel::config tool|tool\.|for \(keel)/\1/; s/^    (keel::config const recipe|std::fputs\(keel::describe\(recipe)/\1/' >"$folder/region"
      diff -u "$folder/region" "$text" >"$folder/diff" || { fail "the snippet of $file $region is not what the file says:"; cat "$folder/diff"; }
      ;;
    compiles | refused)
      cp "$root/examples/recipe.cpp" "$folder/changed.cpp"
      old=$(sed -n 's/^-//p' "$text")
      new=$(sed -n 's/^+//p' "$text")
      awk -v old="$old" -v new="$new" '{ at = index($0, old); if (at == 1) { print new substr($0, length(old) + 1); ++hits } else print } END { exit hits != 1 }' \
        "$root/examples/recipe.cpp" >"$folder/changed.cpp" || fail "the line to change is not once in examples/recipe.cpp: $old"
      said=0
      "$compiler" -std=c++20 -fsyntax-only -fdiagnostics-color=never -I"$root/include" "$folder/changed.cpp" >"$folder/out" 2>&1 || said=1
      if [ "$mark" = compiles ]; then
        [ "$said" -eq 0 ] || { fail "does not compile: $new"; cat "$folder/out"; }
      else
        [ "$said" -eq 1 ] || fail "compiles, and README.md says that it does not: $new"
        grep -m1 -o '\[[A-Z][0-9][0-9]\].*' "$folder/out" | sed "s/[\"']$//" >"$folder/words" || true
        next="$folder/$((number + 1)).text"
        grep -qF "$(cat "$folder/words")" "$next" || { fail "the compiler's words have changed; it now says: $(cat "$folder/words")"; }
      fi
      ;;
    said) ;; # checked with the refused block before it
    *) fail "unknown mark: $mark" ;;
  esac
done
[ "$blocks" -ge 8 ] || fail "only $blocks marked blocks were found; the marks are broken"
[ "$(wc -l <"$root/README.md")" -le 300 ] || fail "more than 300 lines; what explains a folder stands in that folder's README.md"
# Links to files that are there.
for one in $readmes; do
  for link in $(grep -oE '\]\([^)#:]+\)' "$root/$one" | sed 's/^](//; s/)$//'); do
    [ -e "$root/$(dirname "$one")/$link" ] || fail "$one links to $link, which is not there"
  done
done
[ "$failures" -eq 0 ] || exit 1
echo "$blocks blocks of $(echo "$readmes" | wc -l) pages hold"
