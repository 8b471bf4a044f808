#!/usr/bin/env bash
# kill_test.sh VICTIM [KILLS [SEED]]: SIGKILLs a run at random moments, starts it again each time, and compares the end with a
# run that was never killed: parameters, moments, the whole state, and every value of the record, bit by bit.
set -euo pipefail
victim=$1
kills=${2:-50}
RANDOM=${3:-20261121}
updates=400
pause=1500 # microseconds a micro-batch: the kills are to land in the run, not in its start
export OMP_NUM_THREADS=1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$victim" "$folder/whole" "$updates" 0

done_kills=0
resumed=0
while [ "$done_kills" -lt "$kills" ]; do
  "$victim" "$folder/killed" "$updates" "$pause" &
  process=$!
  # Between a moment before the first batch and some way into the run.
  milliseconds=$((150 + RANDOM % 500))
  sleep "$(printf '%d.%03d' $((milliseconds / 1000)) $((milliseconds % 1000)))"
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
[ "$resumed" -gt $((kills / 2)) ] || { echo "only $resumed of $kills kills were followed by a resume: they did not hit the run"; exit 1; }
echo "$done_kills kills, $resumed resumes: parameters, optimizer state, run state and record equal the unkilled run's, bit by bit"
