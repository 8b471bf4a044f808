#!/usr/bin/env bash
# needs.sh FOLDER: copies what the tests need beside LibTorch and CUDA from this system into FOLDER, a prefix for CMake: a machine
# with a GPU may reach no packages. The folder takes some 12 MB.
set -euo pipefail
to=$1
rm -rf "$to"
mkdir -p "$to/usr/include/boost" "$to/usr/lib/cmake" "$to/usr/share/cmake"
need() {
  for path in "$@"; do
    if [ ! -e "$path" ]; then
      echo "needs.sh: $path is not on this machine. Run tests/run once, which installs it." >&2
      exit 1
    fi
  done
}
copy() {
  need "${@:2}"
  cp -rL "${@:2}" "$to/$1"
}
copy usr/include/boost /usr/include/boost/{hana,hana.hpp,version.hpp}
copy usr/include /usr/include/{range,meta,concepts,std,nlohmann,catch2,xxhash.h,xxh3.h}
copy usr/lib/cmake /usr/lib/cmake/{range-v3,Catch2}
copy usr/share/cmake /usr/share/cmake/nlohmann_json
# Where there is Catch2 3, it has libraries.
for library in /usr/lib/libCatch2*.a /usr/lib/*/libCatch2*.a /usr/lib/*/libxxhash.a; do
  if [ -e "$library" ]; then cp "$library" "$to/usr/lib"; fi
done
need "$to/usr/lib/libxxhash.a"
