#!/usr/bin/env bash
# check.sh KIND SOURCE BUILD CXX: does what a user's project does with keel, in a directory that goes away: KIND find_package
# installs keel from SOURCE and finds it there; KIND add_subdirectory takes SOURCE in, and shows that keel::recipe reads no header
# of LibTorch; KIND strict_warnings takes SOURCE in under warnings that are errors. From BUILD come only the places where keel's own build found its dependencies.
set -euo pipefail

fail() {
  echo "$*" >&2
  exit 1
}
[ $# -eq 4 ] || fail "usage: $0 find_package|add_subdirectory|strict_warnings SOURCE BUILD CXX"
kind=$1
source=$(cd "$2" && pwd)
build=$3
compiler=$4
here=$(cd "$(dirname "$0")" && pwd)
[ -f "$here/$kind/CMakeLists.txt" ] || fail "there is no consumer '$kind': take find_package, add_subdirectory or strict_warnings"
[ -f "$build/CMakeCache.txt" ] || fail "$build is no configured build directory of keel"
export OMP_NUM_THREADS=1
unset CXXFLAGS CPLUS_INCLUDE_PATH

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

hints=("-DCMAKE_CXX_COMPILER=$compiler" -DCMAKE_BUILD_TYPE=None -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
if command -v ninja > "$folder/which"; then hints+=(-G Ninja); fi
prefixes=
while IFS= read -r entry; do
  case $entry in
    CMAKE_PREFIX_PATH:*) prefixes=${entry#*=} ;;
    *-NOTFOUND) ;;
    *) hints+=("-D$entry") ;;
  esac
done < <(grep -E '^(CMAKE_PREFIX_PATH|CMAKE_CXX_COMPILER_LAUNCHER|[A-Za-z0-9_-]+_DIR|KEEL_XXHASH_[A-Z]+):(PATH|FILEPATH|STRING)=' "$build/CMakeCache.txt" |
  grep -vE '^(keel|CMAKE_[A-Z_]*)_DIR:')

# quietly "WHAT IT DOES" COMMAND..: the command's words are shown if it fails, and stay in $folder/log.
quietly() {
  local what=$1
  shift
  if ! "$@" > "$folder/log" 2>&1; then
    cat "$folder/log" >&2
    fail "consumer.$kind: cannot $what"
  fi
}

if [ "$kind" = find_package ]; then
  quietly "configure keel without its tests" \
    cmake -S "$source" -B "$folder/keel" "${hints[@]}" "-DCMAKE_PREFIX_PATH=$prefixes" -DKEEL_TESTS=OFF -DKEEL_EXAMPLES=OFF
  quietly "install keel" cmake --install "$folder/keel" --prefix "$folder/prefix"
  (cd "$source/include" && find keel -type f ! -name '*.cmake' ! -name '*.md' ! -path 'keel/tools/*') | sort > "$folder/written"
  (cd "$folder/prefix/include" && find keel -type f) | sort > "$folder/installed"
  quietly "find all headers of keel installed, and no others" diff "$folder/written" "$folder/installed"
  rm -rf "$folder/keel"
  quietly "configure a project with find_package(keel)" \
    cmake -S "$here/find_package" -B "$folder/build" "${hints[@]}" "-DCMAKE_PREFIX_PATH=$folder/prefix;$prefixes"
  quietly "build a project with find_package(keel)" cmake --build "$folder/build"
  grep -qF "$folder/prefix/include" "$folder/build/compile_commands.json" || fail "the consumer does not take keel from the prefix"
  quietly "test a rule of the consumer's own in keel's harness" ctest --test-dir "$folder/build" --output-on-failure --no-tests=error
  if grep -qF -- "$source/include" "$folder/build/compile_commands.json"; then
    fail "the installed package points back at keel's source"
  fi
  for keel in keel compiled; do
    quietly "run a program with keel::$keel" "$folder/build/saves_with_$keel" "$folder/run_$keel"
    cp "$folder/log" "$folder/printed_$keel"
  done
  [ "$(wc -l < "$folder/printed_keel")" -gt 20 ] || fail "the program printed too little to compare"
  quietly "find the same bits with keel::keel and keel::compiled" diff "$folder/printed_keel" "$folder/printed_compiled"
  quietly "find bodies in the library" sh -c "nm -C '$folder/build/libkeel_training.a' | grep ' T keel::compiled::load_safetensors' >/dev/null"
else
  quietly "configure a project with add_subdirectory(keel)" \
    cmake -S "$here/$kind" -B "$folder/build" "${hints[@]}" "-DCMAKE_PREFIX_PATH=$prefixes" "-DKEEL_SOURCE=$source"
  quietly "build a project with add_subdirectory(keel)" cmake --build "$folder/build"
fi
if [ "$kind" = add_subdirectory ]; then
  # The consumer is compiled with -H: a line of dots and a path for each header that was read.
  grep -E '^\.+ ' "$folder/log" > "$folder/headers" || fail "the compiler named no header that it read"
  grep -q '/keel/rule/catalogue\.hpp$' "$folder/headers" || fail "the list of headers lacks keel's own, so it shows nothing"
  if grep -E '/(torch|ATen|c10|caffe2|boost|range|nlohmann)/' "$folder/headers" >&2; then
    fail "keel::recipe read the headers above, and needs a compiler and nothing else"
  fi
  quietly "run the consumer's trainer" "$folder/build/trainer"
fi
cd "$folder"
quietly "run the consumer" "$folder/build/consumer"
echo "consumer.$kind: configured, built and run"
