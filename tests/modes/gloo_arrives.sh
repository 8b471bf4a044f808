#!/usr/bin/env bash
# gloo_arrives.sh SOURCE CXX: keel is configured and compiled on a machine without the headers of Gloo; then they are installed, and the next
# build, without a cmake by hand, has them. In a mount namespace, in which /usr/include is a layer over the machine's: only root can.
set -euo pipefail
source=$1
compiler=$2
skip() {
  echo "SKIPPED: $*"
  exit 0
}
if [ "${3:-}" != inside ]; then
  [ -e /usr/include/gloo/algorithm.h ] || skip "there are no headers of Gloo to take away"
  [ "$(id -u)" -eq 0 ] || skip "only root can take them away for a test"
  # On a file system in memory: a layer's upper folder cannot be on every kind.
  unshare --mount bash -c 'mount -t tmpfs none /mnt && mkdir /mnt/upper /mnt/work &&
    mount -t overlay overlay -o lowerdir=/usr/include,upperdir=/mnt/upper,workdir=/mnt/work /usr/include' 2>/dev/null || skip "this machine lets root mount no layers"
  exec unshare --mount "$0" "$source" "$compiler" inside
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r /usr/include/gloo "$folder/gloo"
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work
mount -t overlay overlay -o lowerdir=/usr/include,upperdir=/mnt/upper,workdir=/mnt/work /usr/include
rm -rf /usr/include/gloo

object=CMakeFiles/keel_training.dir/include/keel/compiled/ranks.cpp.o
build() { cmake --build "$folder/build" --target "$object" >"$folder/log" 2>&1 || { tail -n 40 "$folder/log" >&2; exit 1; }; }
# The sentence that a program without Gloo says is in the file, or it is not.
lacks_gloo() { grep -q 'was compiled without Gloo' "$folder/build/$object"; }
cmake -S "$source" -B "$folder/build" -G Ninja "-DCMAKE_CXX_COMPILER=$compiler" -DCMAKE_BUILD_TYPE=None >"$folder/log" 2>&1
build
lacks_gloo || { echo "the library was to be compiled without Gloo, and was not"; exit 1; }
sleep 1
cp -r "$folder/gloo" /usr/include/gloo
build
if lacks_gloo; then
  echo "Gloo's headers arrived, and the next build did not see them"
  exit 1
fi
echo "compiled without Gloo, and with it once its headers had arrived"
