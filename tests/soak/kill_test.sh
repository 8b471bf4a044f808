#!/usr/bin/env bash
# kill_test.sh VICTIM [KILLS [SEED [requests]]]: SIGKILLs a run at random moments, starts it again each time, and compares the end with a
# run that was never killed: parameters, moments, the whole state, and every value of the record, bit by bit. With `requests` the
# run rolls back and keeps its best checkpoint, many kills come after a SIGUSR2, and many are a SIGTERM, which leaves a checkpoint.
set -euo pipefail
victim=$1
kills=${2:-50}
RANDOM=${3:-20261121}
mode=()
[ "${4:-}" = "" ] || mode=(rollback)
updates=2000
pause=1500 # microseconds a micro-batch: the kills are to land in the run, not in its start
export OMP_NUM_THREADS=1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$victim" "$folder/whole" "$updates" 0 "${mode[@]}"

lines_of() { if [ -e "$1" ]; then wc -l <"$1"; else echo 0; fi; }

done_kills=0
resumed=0
while [ "$done_kills" -lt "$kills" ]; do
  "$victim" "$folder/killed" "$updates" "$pause" "${mode[@]}" &
  process=$!
  # Four of five kills land in the run, at a random moment after it began; the others in its start, loading included.
  if [ $((RANDOM % 5)) -ne 0 ]; then
    lines=$(lines_of "$folder/killed/events.jsonl")
    while kill -0 "$process" 2>/dev/null && [ "$(lines_of "$folder/killed/events.jsonl")" -eq "$lines" ]; do sleep 0.01; done
  fi
  sleep "0.$(printf '%03d' $((RANDOM % 150)))"
  signal=KILL
  if [ ${#mode[@]} -gt 0 ] && [ "$(lines_of "$folder/killed/events.jsonl")" -gt 0 ]; then
    if [ $((RANDOM % 2)) -eq 0 ]; then kill -USR2 "$process" 2>/dev/null && sleep "0.0$((RANDOM % 10))" || true; fi
    if [ $((RANDOM % 3)) -eq 0 ]; then signal=TERM; fi
  fi
  if kill -"$signal" "$process" 2>/dev/null; then
    done_kills=$((done_kills + 1))
  fi
  if wait "$process" 2>/dev/null && grep -q '"event":"finished"' "$folder/killed/events.jsonl"; then
    # It ended before its kill. One finished run cannot be killed any more, so the next one begins at the beginning.
    "$victim" "$folder/killed" "$updates" 0 "${mode[@]}"
    "$(dirname "$0")/compare_runs.sh" "$folder/whole" "$folder/killed"
    resumed=$((resumed + $(grep -c '"resumed"' "$folder/killed/events.jsonl")))
    rm -rf "$folder/killed"
  fi
done
"$victim" "$folder/killed" "$updates" 0 "${mode[@]}"
"$(dirname "$0")/compare_runs.sh" "$folder/whole" "$folder/killed"
resumed=$((resumed + $(grep -c '"resumed"' "$folder/killed/events.jsonl")))
[ "$resumed" -ge $((kills / 3)) ] || { echo "only $resumed of $kills kills were followed by a resume: they did not hit the run"; exit 1; }
echo "$done_kills kills, $resumed resumes: parameters, optimizer state, run state and record equal the unkilled run's, bit by bit"
