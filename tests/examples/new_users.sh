#!/usr/bin/env bash
# new_users.sh CLASSIFIER STATEFUL_LSTM: both examples, stopped by SIGTERM, killed, and started again, end with the bits of a run that
# was left alone.
set -euo pipefail
if [ $# -ne 2 ] || [ ! -x "$1" ] || [ ! -x "$2" ]; then
  echo "usage: $0 CLASSIFIER STATEFUL_LSTM, programs that exist" >&2
  exit 1
fi
classifier=$(realpath "$1")
lstm=$(realpath "$2")
export OMP_NUM_THREADS=1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() {
  tail -n 40 out* >&2
  echo "$*" >&2
  exit 1
}

# interrupted NAME SIGNAL LINES COMMAND..: starts the command and sends the signal when its record has so many lines.
interrupted() {
  local run=$1 signal=$2 lines=$3
  shift 3
  "$@" > "out-$run" 2>&1 &
  local process=$!
  while [ "$(cat "$run/metrics.jsonl" 2>/dev/null | wc -l)" -lt "$lines" ]; do
    kill -0 "$process" 2>/dev/null || fail "$* ended before it had $lines lines"
    sleep 0.01
  done
  kill -s "$signal" "$process"
  wait "$process" || true
}

weights_of() { find "$1/checkpoints" -name model.safetensors -path "*step-*" | sort | xargs sha256sum | sed "s,$1/,,"; }

"$classifier" whole 20 > out-whole 2>&1 || fail "the classifier failed"
interrupted stopped TERM 40 "$classifier" stopped 20
[ ! -e stopped/checkpoints/step-000000360 ] || fail "the classifier was stopped too late"
interrupted stopped KILL 130 "$classifier" stopped 20
"$classifier" stopped 20 > out-stopped 2>&1 || fail "the classifier that was stopped and killed failed"
[ "$(grep '^best:' out-whole)" = "$(grep '^best:' out-stopped)" ] || fail "another best after a stop and a kill"
[ "$(weights_of whole)" = "$(weights_of stopped)" ] || fail "other weights after a stop and a kill"
grep -q '"accuracy":' whole/events.jsonl || fail "the record has no accuracy"
accuracy=$(sed -n 's/.*predicted with its weights: //p' out-whole)
awk -v a="$accuracy" 'BEGIN { exit !(a > 0.85) }' || fail "the classifier learned nothing: $accuracy"

"$lstm" whole-lstm 300 > out-whole-lstm 2>&1 || fail "the network failed"
mv stateful_lstm.safetensors whole.safetensors
interrupted stopped-lstm TERM 70 "$lstm" stopped-lstm 300
interrupted stopped-lstm KILL 170 "$lstm" stopped-lstm 300
"$lstm" stopped-lstm 300 > out-stopped-lstm 2>&1 || fail "the network that was stopped and killed failed"
cmp whole.safetensors stateful_lstm.safetensors || fail "other weights after a stop and a kill"
[ "$(grep -c '"resumed"' stopped-lstm/events.jsonl)" -eq 2 ] || fail "not resumed twice"
echo "$(grep '^best:' out-whole)"
