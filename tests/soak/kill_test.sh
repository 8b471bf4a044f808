#!/usr/bin/env bash
# kill_test.sh VICTIM [KILLS [SEED]]: SIGKILLs a run at random moments, starts it again each time, and compares the end with a
# run that was never killed: parameters, moments, the whole state, and every value of the record, bit by bit.
set -euo pipefail
victim=$1
kills=${2:-50}
RANDOM=${3:-20261121}
updates=2000
pause=1500 # microseconds a micro-batch: the kills are to land in the run, not in its start
export OMP_NUM_THREADS=1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$victim" "$folder/whole" "$updates" 0

lines_of() { if [ -e "$1" ]; then wc -l <"$1"; else echo 0; fi; }

done_kills=0
resumed=0
while [ "$done_kills" -lt "$kills" ]; do
  "$victim" "$folder/killed" "$updates" "$pause" &
  process=$!
  # Four of five kills land in the run, at a random moment after it began; the others in its start, loading included.
  if [ $((RANDOM % 5)) -ne 0 ]; then
    lines=$(lines_of "$folder/killed/events.jsonl")
    while kill -0 "$process" 2>/dev/null && [ "$(lines_of "$folder/killed/events.jsonl")" -eq "$lines" ]; do sleep 0.01; done
  fi
  sleep "0.$(printf '%03d' $((RANDOM % 150)))"
  if kill -KILL "$process" 2>/dev/null; then
    done_kills=$((done_kills + 1))
  fi
  if wait "$process" 2>/dev/null; then
    # It ended before its kill. One finished run cannot be killed any more, so the next one begins anew.
    "$victim" "$folder/killed" "$updates" 0
    "$(dirname "$0")/compare_runs.sh" "$folder/whole" "$folder/killed"
    resumed=$((resumed + $(grep -c '"resumed"' "$folder/killed/events.jsonl")))
    rm -rf "$folder/killed"
  fi
done
"$victim" "$folder/killed" "$updates" 0
"$(dirname "$0")/compare_runs.sh" "$folder/whole" "$folder/killed"
resumed=$((resumed + $(grep -c '"resumed"' "$folder/killed/events.jsonl")))
[ "$resumed" -ge $((kills / 3)) ] || { echo "only $resumed of $kills kills were followed by a resume: they did not hit the run"; exit 1; }
echo "$done_kills kills, $resumed resumes: parameters, optimizer state, run state and record equal the unkilled run's, bit by bit"
