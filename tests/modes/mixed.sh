#!/usr/bin/env bash
# mixed.sh COMPILER ARG..: two files of a program, one with the bodies inline and one for keel::compiled, do not link, whether one hands the
# other something of keel's or not; two of one mode do. The recipe floors, which have no bodies, are the same in both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/fails.cpp" <<'END'
#include <keel/core/error.hpp>
void fail() { throw keel::error("E12", "words"); }
END
cat >"$folder/catches.cpp" <<'END'
#include <keel/core/error.hpp>
void fail();
int main() {
  try {
    fail();
  } catch (keel::error const&) {
    return 0;
  }
  return 1;
}
END
cat >"$folder/judges.cpp" <<'END'
#include <keel/recipe.hpp>
bool judge(keel::config const& value) { return value == keel::config_of<keel::recipe<>>; }
END
cat >"$folder/asks.cpp" <<'END'
#include <keel/core/error.hpp>
#include <keel/recipe.hpp>
bool judge(keel::config const& value);
int main() { return judge(keel::config_of<keel::recipe<>>) ? 0 : 1; }
END
cd "$folder"
compile() { "${compiler[@]}" -std=c++20 -c "$1.cpp" -o "$2.o" "${@:3}"; }
compiler=("$@")
compile fails fails
compile catches catches
compile catches catches_compiled -DKEEL_COMPILED
compile judges judges
compile asks asks_compiled -DKEEL_COMPILED
"$1" fails.o catches.o -o one_mode
./one_mode
if "$1" fails.o catches_compiled.o -o mixed >said 2>&1; then
  echo "a program that mixes the modes links"
  exit 1
fi
grep -q 'keel_compiled_and_keel_keel_are_mixed' said || { cat said; echo "it does not link for another reason"; exit 1; }
"$1" judges.o asks_compiled.o -o recipes
./recipes
# What the preprocessor leaves names the mode.
for mode in compiled header_only; do
  flag=()
  if [ $mode = compiled ]; then flag=(-DKEEL_COMPILED); fi
  "$@" -std=c++20 ${flag[@]+"${flag[@]}"} -E fails.cpp >source
  grep -q "namespace keel::inline $mode {" source || { echo "the preprocessed source does not name the mode $mode"; exit 1; }
done
echo "one mode links, two do not, and recipes are of both"
