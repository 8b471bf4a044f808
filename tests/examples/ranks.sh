#!/usr/bin/env bash
# ranks.sh CHAR_GPT: two processes train one model, by themselves, and by torchrun and mpirun where these are installed. Where one of
# them is killed, or gets a signal, the other ends too and says why, and what goes on from there ends with the same parameters, bit by bit.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
  echo "usage: $0 CHAR_GPT, a program that exists" >&2
  exit 1
fi
char_gpt=$(realpath "$1")
updates=56 # the first checkpoint is after update 50
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

folder=$(mktemp -d)
processes=()
# processes_of RUN [RANK]: those of a run, whoever started them, or of one rank of it.
processes_of() {
  local entry
  for entry in /proc/[0-9]*; do
    [ "$(readlink "$entry/exe" 2>/dev/null)" = "$char_gpt" ] || continue
    { tr '\0' '\n' < "$entry/cmdline" | grep -qxF "$folder/$1"; } 2>/dev/null || continue
    if [ $# -gt 1 ]; then
      { tr '\0' '\n' < "$entry/environ" | grep -qxE "(RANK|OMPI_COMM_WORLD_RANK)=$2"; } 2>/dev/null || continue
    fi
    echo "${entry#/proc/}"
  done
}
end_all() {
  local left
  left="${processes[*]} $(processes_of by_torchrun) $(processes_of by_mpirun)"
  # Word splitting is wanted: this is a list.
  # shellcheck disable=SC2086
  kill -KILL $left 2>/dev/null || true
  rm -rf "$folder"
}
trap end_all EXIT
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

# by_launcher NAME COMMAND..: of two ranks that a launcher starts, rank 1 is killed. The launcher then ends without success, and rank 0 with
# it, and one of them says which rank it was; started again, the run ends with the parameters of the one that was not cut.
by_launcher() {
  local name=$1 run=by_$1 launched victim
  shift
  # shellcheck disable=SC2046
  "$@" "$char_gpt" $(arguments "$run" "$updates") > "$folder/$name.out" 2>&1 < /dev/null &
  launched=$!
  processes=("$launched")
  until_line "$run" 52
  victim=$(processes_of "$run" 1)
  [ -n "$victim" ] || fail "$name: rank 1 is not found"
  kill -KILL "$victim"
  ended 0
  [ "$code" -ne 0 ] || fail "$name ended with success, and rank 1 was killed"
  for _ in $(seq 100); do
    if [ -z "$(processes_of "$run")" ]; then break; fi
    sleep 0.1
  done
  [ -z "$(processes_of "$run")" ] || fail "$name: rank 0 hangs"
  said "$name" "rank 1"
  # shellcheck disable=SC2046
  "$@" "$char_gpt" $(arguments "$run" "$updates") > "$folder/$name-again.out" 2>&1 < /dev/null || fail "$name does not run it again"
  said "$name-again" "training on 2 ranks"
  cmp "$folder/whole/checkpoints/step-000000056/model.safetensors" "$folder/$run/checkpoints/step-000000056/model.safetensors" ||
    fail "$run has other parameters than the run that was not cut"
  echo "$name: the same parameters after rank 1 was killed"
}

if command -v torchrun >/dev/null; then
  # Debian 12's does not start under its Python unless it gets the first two options.
  by_launcher torchrun torchrun --no_python --redirects 9:1 --tee 9:1 --nproc_per_node 2
else
  echo "torchrun is not installed (Debian: python3-torch): not tried"
fi
if command -v mpirun >/dev/null; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  by_launcher mpirun mpirun --oversubscribe -np 2
else
  echo "mpirun is not installed (Debian: openmpi-bin): not tried"
fi
