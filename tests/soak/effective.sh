#!/usr/bin/env bash
# effective.sh VICTIM UPDATES SECONDS: how much of the time a run still spends training that is killed every so many seconds and
# started again, against one that nobody kills. It saves beside training as often as Young and Daly say. Prints the share.
set -euo pipefail
victim=$1
updates=$2
seconds=$3
pause=2000 # microseconds a micro-batch
export OMP_NUM_THREADS=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

now() { date +%s%N; }
began=$(now)
"$victim" "$folder/whole" "$updates" "$pause" daly
whole=$(($(now) - began))

kills=0
began=$(now)
while :; do
  "$victim" "$folder/killed" "$updates" "$pause" daly &
  process=$!
  (sleep "$seconds" && kill -KILL "$process" 2>/dev/null) &
  killer=$!
  if wait "$process" 2>/dev/null; then
    # The sleep within ends with its shell.
    pkill -P "$killer" 2>/dev/null || true
    kill "$killer" 2>/dev/null || true
    wait "$killer" 2>/dev/null || true
    break
  fi
  wait "$killer" 2>/dev/null || true
  kills=$((kills + 1))
done
killed=$(($(now) - began))
"$(dirname "$0")/compare_runs.sh" "$folder/whole" "$folder/killed"
awk -v whole="$whole" -v killed="$killed" -v kills="$kills" 'BEGIN { printf "%.4f %.1f %.1f %d\n", whole / killed, killed / 1e9, whole / 1e9, kills }'
