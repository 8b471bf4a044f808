#!/usr/bin/env bash
# compare_runs.sh A B: fails unless the newest checkpoints of two runs, and their records apart from the clock's figures, are
# the same bytes.
set -euo pipefail
newest() { find "$1/checkpoints" -maxdepth 1 -name 'step-*' | sort | tail -n 1; }
a=$(newest "$1")
b=$(newest "$2")
[ "$(basename "$a")" = "$(basename "$b")" ] || { echo "the runs end at $(basename "$a") and $(basename "$b")"; exit 1; }
for file in model.safetensors optimizer.safetensors state.safetensors state.json manifest.json; do
  cmp "$a/$file" "$b/$file" || { echo "$file differs"; exit 1; }
done
without_clock() { sed 's/"ms":.*//' "$1/metrics.jsonl"; }
cmp <(without_clock "$1") <(without_clock "$2") || { echo "metrics.jsonl differs"; exit 1; }
