#!/usr/bin/env bash
# commands.sh KEEL GOOD_RECIPE OLDER: what the commands of the program keel answer, with their exit status. OLDER: run directories of
# tests/checkpoint/older.
set -euo pipefail
keel=$(realpath "$1")
good=$2
older=$3/0.1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
count=0
fail() {
  echo "$*" >&2
  exit 1
}
# answers STATUS "WORDS" ARG..
answers() {
  local due=$1 words=$2 status=0
  shift 2
  "$keel" "$@" > "$folder/said" 2>&1 || status=$?
  [ "$status" -eq "$due" ] || fail "keel $*: exit status $status, expected $due: $(cat "$folder/said")"
  grep -qF -- "$words" "$folder/said" || fail "keel $*: does not say '$words' but: $(cat "$folder/said")"
  count=$((count + 1))
}

answers 0 'for 16 ranks: keel::shard::' plan --parameters 1e9 --micro-batch-seconds 0.5 --ranks 4 16 --failure-hours 1000
answers 1 'Nothing fits: keel::shard::zero<3> on 4 ranks' plan --parameters 1e9 --micro-batch-seconds 0.5 --ranks 2 4 --memory-gib 1
answers 2 '[E12] keel plan: the bandwidth' plan --parameters 1e9 --micro-batch-seconds 0.5 --bandwidth 0
answers 0 'ladder halve_micro_batch, enable_recompute reentrant, give_up' check "$good"
echo '{"shard": {"zero": 3}, "recompute": "non_reentrant", "ema": 1.0}' > "$folder/bad.json"
answers 1 '[A01] non-reentrant' check "$folder/bad.json"
answers 1 '[M10] the decay' check "$folder/bad.json"
echo '{"shrad": {"zero": 3}}' > "$folder/unknown.json"
answers 2 'did you mean "shard"?' check "$folder/unknown.json"
answers 2 'cannot open' check "$folder/nowhere.json"
answers 2 'cannot open' check "$good" "$folder/nowhere.json" "$folder/bad.json"

answers 0 'parameters that ZeRO-3 freed' explain '[A01]'
answers 1 'no entry of the guide has these words' explain xyzzy

cp -r "$older/judged/run" "$folder/run"
cp -r "$older/at_milestones/run" "$folder/other"
cp -r "$older/at_milestones/run" "$folder/third"
answers 0 'whole: update 6' checkpoint verify "$folder/run"
answers 0 'written by    keel' checkpoint show "$folder/run"
answers 0 'the same' checkpoint diff "$folder/run" "$folder/run/checkpoints/step-000000006"
answers 1 'differences' checkpoint diff "$folder/run" "$folder/other"
answers 0 'tensors' checkpoint merge "$folder/run" "$folder/merged.safetensors"
answers 2 'merged.safetensors exists' checkpoint merge "$folder/run" "$folder/merged.safetensors"
answers 2 'no moving average' checkpoint merge "$folder/run" "$folder/averaged.safetensors" --averaged
printf 'x' | dd of="$folder/other/checkpoints/step-000000006/model.safetensors" bs=1 seek=100 conv=notrunc 2>/dev/null
answers 1 'DAMAGED' checkpoint verify "$folder/run" "$folder/other"
answers 2 'holds no checkpoint' checkpoint verify "$folder"

# Of the 1,000 + 10 numbers of this file 1,000 are trained: 4,000 bytes of parameters and gradients, 8,000 of moments.
header='{"frozen.bias":{"dtype":"F32","shape":[10],"data_offsets":[0,40]},"weight":{"dtype":"F32","shape":[1000],"data_offsets":[40,4040]}}'
{ printf "\\x$(printf %02x ${#header})\\0\\0\\0\\0\\0\\0\\0"; printf '%s' "$header"; head -c 4040 /dev/zero; } > "$folder/weights.safetensors"
echo '{}' > "$folder/plain.json"
echo '{"shard": {"zero": 1}, "ema": 0.999}' > "$folder/sharded.json"
answers 0 '1000 trained numbers' estimate "$folder/plain.json" "$folder/weights.safetensors" --frozen frozen.
answers 0 'optimizer          0.01 MiB  2 x 1000' estimate "$folder/plain.json" "$folder/weights.safetensors" --frozen frozen.
answers 0 'average' estimate "$folder/sharded.json" "$folder/weights.safetensors" --ranks 4
answers 0 'without activations' estimate "$folder/plain.json" "$folder/run"
answers 2 '--frozen head: no tensor' estimate "$folder/plain.json" "$folder/run" --frozen head
answers 2 '[E02]' estimate "$folder/plain.json" "$folder/nowhere.safetensors"
answers 105 'not in range' estimate "$folder/plain.json" "$folder/run" --ranks 0

cd "$folder"
answers 0 'wrote ' report run --output page.html
grep -q '</html>' page.html || fail "keel report left no page"
answers 2 '[E02]' report nowhere
answers 2 '[E02]' triage nowhere
answers 3 'not enough data' triage run
answers 1 'they first differ' compare run "$folder/third"
answers 2 '[E02]' compare run nowhere

"$keel" --version > said || fail "keel --version fails"
answers 106 'subcommand' 
answers 106 'RUN_DIRECTORY is required' triage
echo "keel answered $count times"
