#!/usr/bin/env bash
# other_libtorch.sh VICTIM OTHER_VICTIM: one run that begins on this LibTorch, goes on with the same program built on another, and
# comes back. Every start must find the checkpoint of the one before, whole, and the run must come to its end.
# OTHER_VICTIM: a command; it sees the same temporary folder, or the folder that KEEL_OTHER_FOLDER names under KEEL_OTHER_ROOT.
set -euo pipefail
victim=$1
other=${2:-}
if [ -z "$other" ]; then
  echo "SKIPPED: no program of another LibTorch; name one with -DKEEL_OTHER_VICTIM=COMMAND"
  exit 0
fi
folder=$(mktemp -d -p "${KEEL_OTHER_ROOT:-}${KEEL_OTHER_FOLDER:-/tmp}")
trap 'rm -rf "$folder"' EXIT
inside=${folder#"${KEEL_OTHER_ROOT:-}"}
export OMP_NUM_THREADS=1
# Of the newest checkpoint.
library() {
  local newest
  newest=$(find "$folder/run/checkpoints" -name 'step-*' | sort | tail -n 1)
  sed -n 's/.*"libtorch": "\(.*\)",\{0,1\}/\1/p' "$newest/manifest.json" | head -n 1
}
# A SIGTERM after two seconds: the run saves and ends.
timeout -s TERM 2 "$victim" "$folder/run" 4000 1000 || true
first=$(library)
# Word splitting is wanted: it is a command.
# shellcheck disable=SC2086
timeout -s TERM 3 $other "$inside/run" 4000 1000 || true
second=$(library)
"$victim" "$folder/run" 4000 0
third=$(library)
resumed=$(grep -c '"resumed"' "$folder/run/events.jsonl")
damaged=$(grep -c '"damaged"' "$folder/run/events.jsonl" || true)
[ -e "$folder/run/checkpoints/step-000004000" ] && [ "$resumed" -eq 2 ] && [ "$damaged" -eq 0 ] && [ "$first" = "$third" ] && [ "$first" != "$second" ] || {
  echo "written by $first, $second, $third; resumed $resumed times, $damaged damaged"
  exit 1
}
echo "a run went from LibTorch $first to $second and back"
