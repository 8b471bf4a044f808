#!/usr/bin/env bash
# killed.sh TIMES PROGRAM [ARGS..]: the program, which takes a run directory as its last argument, is killed so often at random moments and
# started again each time; it must end with the last line, and so with the parameters, of a run that was left alone. `killed.sh 20 ..` is
# what its figures are from, and SEED, which it prints, shows one again.
set -euo pipefail
if [ $# -lt 2 ] || [ ! -x "$2" ]; then
  echo "usage: $0 TIMES PROGRAM [ARGS..]" >&2
  exit 1
fi
times=$1
program=$(realpath "$2")
shift 2
export OMP_NUM_THREADS=1
RANDOM=${SEED:=$$}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

began=$(date +%s%N)
"$program" "$@" "$folder/whole" > "$folder/out-whole" 2>&1 || { cat "$folder/out-whole" >&2; exit 1; }
milliseconds=$((($(date +%s%N) - began) / 1000000))
kills=0
for _ in $(seq "$times"); do
  "$program" "$@" "$folder/cut" > "$folder/out-cut" 2>&1 &
  process=$!
  sleep "$(awk -v all="$milliseconds" -v times="$times" -v chance="$RANDOM" 'BEGIN { printf "%.3f", 0.2 + all / 1000 / times * 2 * chance / 32768 }')"
  if kill -s KILL "$process" 2> /dev/null; then kills=$((kills + 1)); fi
  wait "$process" 2> /dev/null || true
done
"$program" "$@" "$folder/cut" > "$folder/out-cut" 2>&1 || { cat "$folder/out-cut" >&2; exit 1; }

whole=$(tail -n 1 "$folder/out-whole")
cut=$(tail -n 1 "$folder/out-cut")
echo "killed $kills times (SEED=$SEED): $cut"
if [ "$whole" != "$cut" ]; then
  echo "left alone it says: $whole" >&2
  exit 1
fi
# Killed before it had begun, it proves nothing.
[ "$kills" -gt 0 ]
