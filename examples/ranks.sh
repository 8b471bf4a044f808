#!/usr/bin/env bash
# ranks.sh N PROGRAM [ARGS..]: starts so many ranks of a program on this machine, as torchrun does. With --faults among the arguments, where
# the program kills a rank, starts all of them again, at most three times. Exits with the code of a rank that failed.
set -euo pipefail
if [ $# -lt 2 ] || ! [ "$1" -ge 1 ] 2>/dev/null; then
  sed -n '2,3s/^# //p' "$0" >&2
  exit 2
fi
ranks=$1
program=$2
shift 2
case " $* " in *" --faults "*) restarts=3 ;; *) restarts=0 ;; esac

export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1
# An interrupt is for all of them, as a terminal's is.
processes=()
trap 'kill -TERM "${processes[@]}" 2>/dev/null' TERM INT
for attempt in $(seq 0 "$restarts"); do
  export MASTER_PORT=$((20000 + ($$ + attempt) % 20000))
  processes=()
  for rank in $(seq 0 $((ranks - 1))); do
    RANK=$rank LOCAL_RANK=$rank "$program" "$@" &
    processes+=($!)
  done
  code=0
  killed=no
  for process in "${processes[@]}"; do
    of_one=0
    wait "$process" || of_one=$?
    if [ "$of_one" -ne 0 ]; then code=$of_one; fi
    if [ "$of_one" -eq 137 ]; then killed=yes; fi
  done
  if [ "$killed" = no ] || [ "$attempt" -eq "$restarts" ]; then exit "$code"; fi
  printf '\n== a rank was killed; starting all ranks again ==\n\n'
done
