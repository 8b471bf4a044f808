#!/usr/bin/env bash
# tests/run --on cuda: builds the run-time tests against the LibTorch of `python3 -c 'import torch'` and runs them on its GPU, the
# tests of tests/device first, the benchmark of a step, all others on the CPU, kills of a run on the GPU, and once more the others with
# their small models there. What the build needs beside LibTorch, CUDA, CMake and a
# compiler is in .cuda/, which `tests/run --on cuda --pack` fills on a machine with Debian's packages.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
needs=$root/.cuda
logs=${1:-$root/.build/cuda-logs}

if [ "${1:-}" = --pack ]; then exec "$root/tests/device/needs.sh" "$needs"; fi
fail() {
  echo "$*" >&2
  exit 1
}
[ -d "$needs/usr" ] || "$root/tests/device/needs.sh" "$needs" ||
  fail "Fill .cuda/ by tests/run --on cuda --pack on a machine with Debian's packages, and bring it along."
torch=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)' 2>/dev/null) || fail "There is no torch for python3 here."
python3 -c 'import torch; exit(not torch.cuda.is_available())' || fail "The torch of python3 sees no GPU."
abi=$(python3 -c 'import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))')
mkdir -p "$logs"
python3 -c 'import torch; print("LibTorch", torch.__version__, "on", torch.cuda.get_device_name(0))'
g++ --version | head -n 1

build=$root/.build/cuda
generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
cmake -S "$root" -B "$build" "${generator[@]}" -DKEEL_TESTS=ON -DKEEL_BENCHMARKS=ON -DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=-D_GLIBCXX_USE_CXX11_ABI=$abi" \
  "-DCMAKE_PREFIX_PATH=$needs/usr;$torch" >"$logs/configure.log" 2>&1 || {
  tail -n 40 "$logs/configure.log" >&2
  fail "cmake could not configure."
}
started=$SECONDS
cmake --build "$build" --target keel_run_time_tests keel_victim keel_benchmark_device --parallel "$(nproc)" -- -k 0 >"$logs/build.log" 2>&1 || {
  grep -E 'error|FAILED' "$logs/build.log" | head -n 60 >&2
  fail "The tests do not build against this LibTorch; all of it is in $logs/build.log."
}
echo "built in $((SECONDS - started)) s"

# A process a file: one that ends by a signal takes no other with it.
run() {
  local device=$1 file=$2 log="$logs/$1.$2.log" status=0 tests
  tests=$(sed -n "s/ $2\$//p" "$build/tests/run_time_tests")
  OMP_WAIT_POLICY=passive KEEL_TEST_DEVICE=$device CUBLAS_WORKSPACE_CONFIG=:4096:8 \
    timeout "${KEEL_TEST_LIMIT:-120}" "$build/tests/$tests" --filenames-as-tags "[#$file]" >"$log" 2>&1 || status=$?
  printf '%-5s %-32s status %-4s %s; skipped %s\n' "$device" "$file" "$status" "$(grep -E '^(All tests|test cases:)' "$log" | tail -n 1)" \
    "$(grep -c SKIPPED "$log")" >>"$logs/results"
}
: >"$logs/results"
sweep() {
  for file in $(cut -d ' ' -f 2 "$build/tests/run_time_tests"); do
    run "$1" "$file" &
    while [ "$(jobs -rp | wc -l)" -ge "$((($(nproc) + 1) / 2))" ]; do wait -n; done
  done
  wait
}
for file in gpu_training_test gpu_memory_test gpu_checkpoint_test; do run cuda "$file"; done
"$build/benchmarks/keel_benchmark_device" 2>&1 | tee "$logs/benchmark.log"
sweep cpu
KEEL_TEST_DEVICE=cuda timeout 300 "$root/tests/soak/kill_test.sh" "$build/tests/keel_victim" "${KEEL_TEST_KILLS:-10}" 2>&1 | tee "$logs/kills.log"
kills=${PIPESTATUS[0]}
sort "$logs/results"
failed=$(grep -vc 'status 0 ' "$logs/results")
echo "$failed files with failures; the kills ended with $kills; the logs are in $logs"

# Shown, and no verdict: many of these look at host memory, or await `updated` where a GPU says `pending`.
: >"$logs/results"
sweep cuda
echo "the same files with their small models on the GPU:"
sort "$logs/results"
[ "$failed" -eq 0 ] && [ "$kills" -eq 0 ]
