#!/usr/bin/env bash
# ranks.sh CHAR_GPT: two processes train one model, by torchrun and mpirun where they are installed. Where one of them is killed, or gets a
# signal, the other ends too and says why, and what goes on from there ends with the same parameters, bit by bit.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
  echo "usage: $0 CHAR_GPT, a program that exists" >&2
  exit 1
fi
char_gpt=$(realpath "$1")
updates=56 # the first checkpoint is behind update 50
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

folder=$(mktemp -d)
processes=()
trap 'kill -9 "${processes[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT
for i in $(seq 200); do echo "The licensee may copy line $i of this text as often as wanted."; done > "$folder/text"

fail() {
  tail -n 20 "$folder"/*.out >&2
  echo "$*" >&2
  exit 1
}
said() { grep -q -e "$2" "$folder/$1.out" || fail "$1 does not say: $2"; }
arguments() { echo --threads 1 --text "$folder/text" --run-directory "$folder/$1" --updates "$2"; }

# start RUN UPDATES: two ranks, as a launcher would.
start() {
  processes=()
  port=$((20000 + (RANDOM % 20000)))
  for rank in 0 1; do
    # shellcheck disable=SC2046
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      "$char_gpt" $(arguments "$1" "$2") > "$folder/$1-rank-$rank.out" 2>&1 < /dev/null &
    processes+=($!)
  done
}
# ended RANK: its exit code, in `code`. None may hang.
ended() {
  code=0
  for _ in $(seq 600); do
    if ! kill -0 "${processes[$1]}" 2>/dev/null; then break; fi
    sleep 0.1
  done
  if kill -0 "${processes[$1]}" 2>/dev/null; then fail "rank $1 hangs"; fi
  wait "${processes[$1]}" || code=$?
}
# until RUN LINES: the record has so many.
until_line() {
  for _ in $(seq 600); do
    if [ -f "$folder/$1/metrics.jsonl" ] && [ "$(wc -l < "$folder/$1/metrics.jsonl")" -ge "$2" ]; then return; fi
    sleep 0.05
  done
  fail "$1 does not come to update $2"
}
ends_like_the_whole() {
  start "$1" "$updates"
  for rank in 0 1; do
    ended "$rank"
    [ "$code" -eq 0 ] || fail "rank $rank of $1 ended with $code"
  done
  cmp "$folder/whole/checkpoints/step-000000056/model.safetensors" "$folder/$1/checkpoints/step-000000056/model.safetensors" ||
    fail "$1 has other parameters than the run that was not cut"
  echo "$1: the same parameters"
}

start whole "$updates"
ended 0
if [ "$code" -ne 0 ] && grep -q "libgloo-dev" "$folder/whole-rank-0.out"; then
  echo "SKIPPED: this LibTorch has no Gloo that keel can use (Debian: libgloo-dev)"
  exit 0
fi
[ "$code" -eq 0 ] || fail "rank 0 ended with $code"
ended 1
[ "$code" -eq 0 ] || fail "rank 1 ended with $code"
[ -f "$folder/whole/rank-1/events.jsonl" ] || fail "rank 1 has no events"

for rank in 0 1; do
  run=killed-$rank
  start "$run" "$updates"
  until_line "$run" 52
  kill -KILL "${processes[$rank]}"
  ended "$((1 - rank))"
  [ "$code" -eq 82 ] || fail "rank $((1 - rank)) ended with $code beside one that was killed, and not with 82"
  said "$run-rank-$((1 - rank))" "rank $rank"
  ended "$rank"
  ends_like_the_whole "$run"
done

# A signal for one of them is one for both, which save behind the same update.
start stopped "$updates"
until_line stopped 20
kill -TERM "${processes[1]}"
for rank in 0 1; do
  ended "$rank"
  [ "$code" -eq 143 ] || fail "rank $rank ended with $code and not with 143, by the signal"
done
ends_like_the_whole stopped

if command -v torchrun >/dev/null; then
  # Debian 12's does not start under its Python unless it gets these two options.
  # shellcheck disable=SC2046
  torchrun --no_python --redirects 9:1 --tee 9:1 --nproc_per_node 2 "$char_gpt" $(arguments by_torchrun 4) > "$folder/torchrun.out" 2>&1 ||
    fail "torchrun does not run it"
  said torchrun "trains on 2 ranks"
  echo "torchrun: runs"
else
  echo "torchrun is not installed (Debian: python3-torch): not tried"
fi
if command -v mpirun >/dev/null; then
  # shellcheck disable=SC2046
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    mpirun --oversubscribe -np 2 "$char_gpt" $(arguments by_mpirun 4) > "$folder/mpirun.out" 2>&1 || fail "mpirun does not run it"
  said mpirun "trains on 2 ranks"
  echo "mpirun: runs"
else
  echo "mpirun is not installed (Debian: openmpi-bin): not tried"
fi
