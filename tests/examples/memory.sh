#!/usr/bin/env bash
# memory.sh CHAR_GPT: the example trains to its end in 60, 40 and 25 % of the memory that it takes by itself, without help, never
# takes more, and its report says which rungs of the ladder it stands on. With too little it ends in words.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
  echo "usage: $0 CHAR_GPT, a program that exists" >&2
  exit 1
fi
char_gpt=$(realpath "$1")
export OMP_NUM_THREADS=2
# What is offloaded needs a disk, and /tmp may be memory.
folder=$(mktemp -d /var/tmp/keel-memory-XXXXXX)
trap 'rm -rf "$folder"' EXIT
for i in $(seq 200); do echo "The licensee may copy line $i of this text as often as wanted."; done > "$folder/text"

fail() {
  tail -n 40 "$folder/out" "$folder/err" >&2
  echo "$*" >&2
  exit 1
}
# run PERCENT: what the example says, and its exit code.
run() {
  code=0
  "$char_gpt" --memory-percent "$1" --updates 4 --threads 2 --text "$folder/text" --run-directory "$folder/run$1" \
    > "$folder/out" 2> "$folder/err" < /dev/null || code=$?
}
# expected PERCENT "WORDS": the run ends well and stands on these rungs.
expected() {
  run "$1"
  [ "$code" -eq 0 ] || fail "with $1 % of the memory the run ended with code $code"
  grep -qE '^  run +finished$' "$folder/out" || fail "with $1 % of the memory the run did not finish"
  grep -qF "$2" "$folder/out" || fail "with $1 % of the memory the report does not say '$2'"
  grep -q '"event":"rung"' "$folder/run$1/events.jsonl" || fail "with $1 % of the memory no rung is on record"
  # Of its budget: "it gets 30.3 MiB" against "peak 30.2 MiB".
  local budget peak
  budget=$(sed -nE 's/.*it gets ([0-9.]+) MiB.*/\1/p' "$folder/out")
  peak=$(sed -nE 's/^  memory +peak ([0-9.]+) MiB.*/\1/p' "$folder/out")
  awk "BEGIN { exit !($peak > 0 && $peak <= $budget + 2) }" || fail "with $1 % it took $peak MiB of $budget"
  echo "with $1 %: $(sed -nE 's/^  memory savings +//p' "$folder/out"); $peak of $budget MiB"
}
expected 60 'micro-batches in'
expected 40 'non-reentrant recompute'
expected 25 'optimizer state offloaded'
# refused PERCENT "WORDS": the run ends with a code that is not zero and says so.
refused() {
  run "$1"
  [ "$code" -ne 0 ] || fail "$1 % of the memory was enough"
  grep -qF "$2" "$folder/out" "$folder/err" || fail "$1 % of the memory: no words about it"
  if grep -q 'frame #' "$folder/err" "$folder/out"; then fail "$1 % of the memory: a trace, where a sentence does"; fi
}
refused 15 'gave up: out of memory'
refused 1 'char_gpt: memory budget: tried to allocate'
