#!/usr/bin/env bash
# check_config.sh PROGRAM GOOD_RECIPE: the exit status and the words for a good recipe, a bad one, one with a wrong key, none.
set -euo pipefail
program=$1
good=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "$*" >&2
  exit 1
}
# answers STATUS "WORDS" FILE..
answers() {
  local due=$1 words=$2 status=0
  shift 2
  "$program" "$@" > "$folder/said" 2>&1 || status=$?
  [ "$status" -eq "$due" ] || fail "$*: exit status $status, expected $due: $(cat "$folder/said")"
  grep -qF -- "$words" "$folder/said" || fail "$*: does not say '$words' but: $(cat "$folder/said")"
}
answers 0 'ladder halve_micro_batch, enable_recompute reentrant, give_up' "$good"
echo '{"shard": {"zero": 3}, "recompute": "non_reentrant", "ema": 1.0}' > "$folder/bad.json"
answers 1 '[A01] non-reentrant' "$folder/bad.json"
answers 1 '[M10] the decay' "$folder/bad.json"
echo '{"shrad": {"zero": 3}}' > "$folder/unknown.json"
answers 2 'did you mean "shard"?' "$folder/unknown.json"
answers 2 'cannot open' "$folder/nowhere.json"
answers 2 'cannot open' "$good" "$folder/nowhere.json" "$folder/bad.json"
echo "check_config judged five times"
