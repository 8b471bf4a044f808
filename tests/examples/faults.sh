#!/usr/bin/env bash
# faults.sh CHAR_GPT: one run of the example survives a NaN in a batch, memory that is gone, and SIGKILL, and says so itself.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
  echo "usage: $0 CHAR_GPT, a program that exists" >&2
  exit 1
fi
char_gpt=$(realpath "$1")
# The kill comes after update 3/5 of these + 7, and there has to be a checkpoint by then: 74 is the smallest number that puts it
# behind the first one, at update 50.
updates=74
export OMP_NUM_THREADS=2

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for i in $(seq 200); do echo "The licensee may copy line $i of this text as often as wanted."; done > "$folder/text"

fail() {
  tail -n 60 "$folder/out" "$folder/err" >&2
  echo "$*" >&2
  exit 1
}
code=0
"$char_gpt" --faults --updates "$updates" --threads 2 --text "$folder/text" --run-directory "$folder/run" \
  > "$folder/out" 2> "$folder/err" < /dev/null || code=$?
[ "$code" -eq 0 ] || fail "the run with faults ended with code $code"

# said COUNT "WORDS" PATTERN
said() {
  local found
  found=$(grep -cE -- "$3" "$folder/out" || true)
  [ "$found" -eq "$1" ] || fail "$2 was said $found times, not $1"
}
said 1 "that the process was ended" '^== the process was ended by signal 9'
said 3 "that a fault was survived" '^  .* yes: '
said 1 "that the NaN was survived" '^  a NaN in a batch .* yes: update [0-9]+ was skipped'
said 1 "that the loss of memory was survived" '^  memory gone in update .* yes: halve_micro_batch'
said 1 "that the kill was survived" '^  SIGKILL after update .* yes: resumed at update 50$'
[ "$(grep -c '"resumed"' "$folder/run/events.jsonl")" -eq 1 ] || fail "events.jsonl does not hold one resume"
grep -E '^  .* yes: ' "$folder/out"
echo "three faults, all survived"
