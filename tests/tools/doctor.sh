#!/usr/bin/env bash
# doctor.sh KEEL: what keel doctor says of this machine, alone and as two ranks, and where it cannot measure.
set -euo pipefail
keel=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/runs"
fail() {
  echo "$*" >&2
  exit 1
}
# says FILE WORDS..
says() {
  local file=$1
  shift
  for words in "$@"; do grep -qE -- "$words" "$file" || fail "keel doctor does not say '$words' but: $(cat "$file")"; done
}
# A busy machine may be slow; then the exit status is 1, and 0 only if no line says so.
consistent() {
  local status=$1 due=0
  if grep -qE '^[^ ]+ +(slow|WRONG) ' "$2"; then due=1; fi
  [ "$status" -eq "$due" ] || fail "exit status $status after: $(cat "$2")"
}

status=0
"$keel" doctor "$folder/runs" --ranks 4 > "$folder/said" 2>&1 || status=$?
says "$folder/said" '^threads ' '^matrix .*GFLOP/s' '^memory .*GB/s' '^disk .*MB/s' '^(devices|cuda)' 'collectives .* 2 ranks of this machine' 'collectives .* 4 ranks of this machine'
if grep -q WRONG "$folder/said"; then fail "wrong: $(cat "$folder/said")"; fi
consistent "$status" "$folder/said"
[ -z "$(ls -A "$folder/runs")" ] || fail "keel doctor left $(ls -A "$folder/runs")"

status=0
OMP_NUM_THREADS=64 "$keel" doctor "$folder/runs" > "$folder/said" 2>&1 || status=$?
[ "$(nproc)" -ge 64 ] || { says "$folder/said" '^threads +slow +64 of LibTorch' 'Set OMP_NUM_THREADS'; consistent "$status" "$folder/said"; }

touch "$folder/file"
status=0
"$keel" doctor "$folder/file" > "$folder/said" 2>&1 || status=$?
[ "$status" -eq 2 ] || fail "exit status $status for a file in the place of a directory: $(cat "$folder/said")"
says "$folder/said" 'E02.*file'

port=$((20000 + $$ % 20000))
for rank in 0 1; do
  RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port OMP_NUM_THREADS=1 "$keel" doctor "$folder/runs" > "$folder/rank-$rank" 2>&1 &
done
for job in $(jobs -p); do wait "$job" || [ $? -eq 1 ] || fail "a rank failed: $(cat "$folder"/rank-*)"; done
for rank in 0 1; do says "$folder/rank-$rank" "^rank $rank of 2" 'collectives .* 2 ranks of this launch'; done
echo "the doctor was asked five times"
