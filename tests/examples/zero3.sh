#!/usr/bin/env bash
# zero3.sh ZERO3: on two ranks with ZeRO-3 a complete recipe survives a NaN, memory that runs out on one rank, and SIGKILL of one rank.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
  echo "usage: $0 ZERO3, a program that exists" >&2
  exit 1
fi
zero3=$(realpath "$1")
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for i in $(seq 200); do echo "The licensee may copy line $i of this text as often as wanted."; done > "$folder/text"

fail() {
  tail -n 60 "$folder/out" >&2
  echo "$*" >&2
  exit 1
}
code=0
"$(dirname "$0")/../../examples/ranks.sh" 2 "$zero3" --faults --text "$folder/text" --run-directory "$folder/run" > "$folder/out" 2>&1 < /dev/null || code=$?
if [ "$code" -ne 0 ] && grep -q "libgloo-dev" "$folder/out"; then
  echo "SKIPPED: this LibTorch has no Gloo that keel can use (Debian: libgloo-dev)"
  exit 0
fi
[ "$code" -eq 0 ] || fail "the run with faults ended with code $code"
# happened EVENT: by the record of rank 0.
happened() { grep -q "\"event\":\"$1\"" "$folder/run/events.jsonl" || fail "events.jsonl has no event $1"; }
happened rolled_back
happened rung
happened resumed
happened finished
grep -q "== a rank was killed" "$folder/out" || fail "no rank was killed"
echo "a NaN, memory that ran out and a kill, all survived on two ranks"
