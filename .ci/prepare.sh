# Sourced by examples/run and tests/run: brings what is missing from Debian's packages, and configures.
#   prepare PACKAGE..         beside those that every part of keel needs
#   configure FOLDER ARG..    cmake for the sources in $root into $root/.build/FOLDER

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

needed_everywhere="g++ cmake ninja-build libboost-dev librange-v3-dev nlohmann-json3-dev libxxhash-dev"
# The OpenMP flavour of OpenBLAS: the reference BLAS is many times slower, and the pthread flavour fights with LibTorch's threads.
needed_for_torch="libtorch-dev libopenblas0-openmp"

say_what_is_needed() {
  echo "keel needs: g++ 12 or later (or clang 18 or later), CMake 3.24 or later, Ninja, LibTorch 1.13 or later, Boost.Hana,"
  echo "range-v3, nlohmann-json, xxHash; its tests also Catch2, its examples also CLI11. A LibTorch outside of the system's"
  echo "folders is named by CMAKE_PREFIX_PATH or Torch_DIR. On Debian these are the packages:"
  echo "  $*"
}

prepare() {
  local wanted="$needed_everywhere $*"
  if [ -z "${CMAKE_PREFIX_PATH:-}" ] && [ -z "${Torch_DIR:-}" ]; then wanted="$wanted $needed_for_torch"; fi
  wanted_packages=$wanted
  if ! command -v apt-get >/dev/null; then
    say_what_is_needed $wanted
    return
  fi
  # Word splitting is wanted: this is a list.
  # shellcheck disable=SC2086
  only_these $wanted
}

# A bare machine has no list of what there is.
know_packages() {
  local as_root=""
  if [ "$(id -u)" -ne 0 ] && command -v sudo >/dev/null; then as_root=sudo; fi
  if [ -z "$(apt-cache pkgnames clang-)" ]; then $as_root apt-get update >/dev/null 2>&1 || true; fi
}

# The packages of clang 19, or of the newest clang where this Debian has later ones alone.
packages_of_clang() {
  command -v apt-cache >/dev/null || return 0
  local version
  know_packages
  for version in 19 $(apt-cache pkgnames clang- 2>/dev/null | sed -n 's/^clang-\([0-9][0-9]*\)$/\1/p' | sort -rn); do
    if [ "$version" -ge 18 ] && apt-cache show "clang-$version" "libfuzzer-$version-dev" >/dev/null 2>&1; then
      echo "clang-$version libclang-rt-$version-dev libfuzzer-$version-dev libomp-$version-dev"
      return
    fi
  done
}

# clang-format and clang-tidy 19, where this Debian has them; other versions format and find differently.
packages_of_checks() {
  command -v apt-cache >/dev/null || return 0
  if apt-cache show clang-format-19 clang-tidy-19 >/dev/null 2>&1; then echo "clang-format-19 clang-tidy-19"; fi
}

# The headers of Gloo, by which ranks talk, where this Debian has them: without them keel compiles, and says so where ranks are to meet.
packages_of_gloo() {
  command -v apt-cache >/dev/null || return 0
  know_packages
  if apt-cache show libgloo-dev >/dev/null 2>&1; then echo "libgloo-dev"; fi
}

# What starts several ranks, where this Debian has it: torchrun and mpirun.
packages_of_launchers() {
  command -v apt-cache >/dev/null || return 0
  know_packages
  local package
  for package in python3-torch openmpi-bin; do
    if apt-cache show "$package" >/dev/null 2>&1; then echo "$package"; fi
  done
}

# missing_of PACKAGE..: those that are not installed.
missing_of() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

only_these() {
  local missing
  missing=$(missing_of "$@")
  [ -n "$missing" ] || return 0
  # Tests that run side by side may both be here: one installs, and the other then misses nothing.
  mkdir -p "$root/.build"
  {
    flock 8
    # Word splitting is wanted: this is a list.
    # shellcheck disable=SC2046
    install_packages $(missing_of "$@") 8>&-
  } 8>"$root/.build/packages.lock"
}

install_packages() {
  [ $# -gt 0 ] || return 0
  local missing=" $*"
  local as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "These packages are missing, and this is neither root nor a user with sudo. As root:" >&2
      echo "  apt-get update && apt-get install --no-install-recommends$missing" >&2
      exit 1
    fi
    as_root=sudo
  fi
  echo "installing:$missing"
  local log
  log=$(mktemp)
  # Word splitting is wanted: these are lists.
  # shellcheck disable=SC2086
  if ! { $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "apt-get could not install$missing" >&2
    exit 1
  fi
  rm -f "$log"
}

configure() {
  local folder=$1
  shift
  local log="$root/.build/$folder-configure.log"
  mkdir -p "$root/.build"
  if ! cmake -S "$root" -B "$root/.build/$folder" -G Ninja "$@" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    # shellcheck disable=SC2086
    say_what_is_needed $wanted_packages >&2
    exit 1
  fi
}

# build FOLDER TARGET..: in $root/.build/FOLDER, with a line every 20 seconds. Leaves the compiler's words in .build/FOLDER-build.log, and
# shows them where it fails.
build() {
  local folder=$1 log="$root/.build/$1-build.log" done_of=0/0 begun=$SECONDS shown=$SECONDS process
  shift
  NINJA_STATUS="[%f/%t] " cmake --build "$root/.build/$folder" --target "$@" >"$log" 2>&1 &
  process=$!
  while kill -0 "$process" 2>/dev/null; do
    sleep 0.5
    if [ $((SECONDS - shown)) -ge 20 ]; then
      shown=$SECONDS
      done_of=$(sed -n 's,^\[\([0-9]*\)/\([0-9]*\)\].*,\1 of \2,p' "$log" | tail -n 1)
      echo "  building: ${done_of:-0} steps after $((SECONDS - begun)) s"
    fi
  done
  if ! wait "$process"; then
    grep -E 'error|FAILED' "$log" >&2 || true
    tail -n 40 "$log" >&2
    exit 1
  fi
  if [ $((SECONDS - begun)) -ge 5 ]; then echo "  built in $((SECONDS - begun)) s"; fi
}

# For programs that are alone on the machine. Threads that wait by spinning bring a busy one to a crawl, and those that sleep make
# small models a third slower: they spin for about as long as it takes to the next parallel region, and then sleep.
let_threads_spin_for_a_while() {
  [ -n "${OMP_WAIT_POLICY:-}" ] || export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000}
}
