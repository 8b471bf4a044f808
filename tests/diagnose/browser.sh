#!/usr/bin/env bash
# browser.sh REPORT: headless Chromium opens the page that REPORT writes about a small run: no error, no request, the same parts at 400
# and 1400 pixels in light and dark. With KEEL_PICTURES=FOLDER the pictures stay there for a look.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
  echo "usage: $0 KEEL, the program" >&2
  exit 1
fi
keel=$(realpath "$1")
if ! command -v chromium >/dev/null; then
  echo "SKIPPED: there is no chromium"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/run"
awk 'BEGIN {
  for (i = 1; i <= 400; ++i) {
    loss = i == 250 ? "\"nan\"" : 1 + 4 * exp(-i / 100)
    printf "{\"update\":%d,\"loss\":%s,\"gradient_norm\":%f,\"lr\":%g,\"skipped\":0,\"memory\":{\"held\":1e8,\"forward\":2e8},\"ms\":12,\"time\":{\"data\":%f,\"forward\":4,\"backward\":6,\"update\":1,\"saving\":0,\"evaluating\":0,\"total\":14}}\n", i, loss, 1 + i % 7, 1e-3, (i > 200 ? 5 : 1)
  }
  print "{\"rolled_back\":1,\"update\":350,\"abandoned\":50}"
  for (i = 351; i <= 380; ++i) printf "{\"update\":%d,\"loss\":1.1,\"gradient_norm\":1,\"lr\":1e-3,\"skipped\":0,\"ms\":12}\n", i
}' >"$folder/run/metrics.jsonl"
printf '%s\n' '{"event":"started","update":0,"time":1763900000}' '{"event":"rolled_back","update":400,"time":1763900100,"to":350,"why":"spikes"}' \
  '{"event":"finished","update":380,"time":1763900200}' >"$folder/run/events.jsonl"
awk 'BEGIN {
  for (i = 20; i <= 400; i += 20) printf "{\"update\":%d,\"layers\":{\"blocks.0\":{\"grad_norm\":%g,\"param_norm\":3,\"update_ratio\":1e-3},\"head\":{\"grad_norm\":%s,\"param_norm\":0,\"update_ratio\":2e-3}}}\n", i, 1 / i, i == 260 ? "\"nan\"" : 0.5
  print "{\"restarted_after\":350}"
}' >"$folder/run/layers.jsonl"
printf '%s\n' '{"event":"alarm","update":300,"time":1763900050,"alarm":"loss_spikes","severity":"warning","message":"the loss jumped","causes":["a <bad> sample"],"fixes":["look at the batch"],"values":{"train/loss":4.5}}' >>"$folder/run/events.jsonl"
printf '%s\n' '{"clip":{"global_norm":1.0}}' >"$folder/run/recipe.json"
mkdir -p "$folder/run/profiles/update-000000300"
printf '%s\n' '# Updates 300 to 301' >"$folder/run/profiles/update-000000300/summary.md"
awk 'BEGIN {
  print "{\"traceEvents\":[{\"ph\":\"M\",\"pid\":1,\"tid\":3,\"name\":\"thread_name\",\"args\":{\"name\":\"training thread\"}}"
  for (i = 0; i < 300; ++i) printf ",{\"ph\":\"X\",\"pid\":1,\"tid\":3,\"name\":\"aten::addmm\",\"cat\":\"matrix products\",\"ts\":%d,\"dur\":80}\n", i * 100
  print ",{\"ph\":\"X\",\"pid\":1,\"tid\":9,\"name\":\"forward\",\"cat\":\"phase\",\"ts\":0,\"dur\":20000}]}"
}' >"$folder/run/profiles/update-000000300/trace.json"
"$keel" report "$folder/run" --output "$folder/report.html" >"$folder/said"
grep -qF 'Finished after update 380. 1 rollback. 1 alarm.' "$folder/said" || { cat "$folder/said"; exit 1; }

# A profile of its own, so that no other Chromium of this user takes the page.
browse() {
  timeout 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --user-data-dir="$folder/profile" \
    --enable-logging=stderr --v=0 --host-resolver-rules='MAP * ~NOTFOUND' "$@" "file://$folder/report.html" 2>>"$folder/log"
}
browse --dump-dom >"$folder/dom"
for part in 'time by phase of run' 'gradient norm of each layer' 'class="gone"' 'class="alarm"' 'a &lt;bad&gt; sample' 'look at the batch' \
  'violates no rule' 'timeline of events' 'aten::addmm, 0.080 ms' 'training thread' 'Finished after update 380' 'curve abandoned' 'class="bad"' 'class="mark back"' 'memory of run' '<td>rolled_back</td>'; do
  grep -qF -- "$part" "$folder/dom" || { echo "the page in the browser lacks $part"; exit 1; }
done
if grep -E 'CONSOLE|net::ERR' "$folder/log"; then
  echo "the browser complains"
  exit 1
fi
pictures=${KEEL_PICTURES:-$folder/pictures}
mkdir -p "$pictures"
# Chromium's windows are at least 500 wide; a phone is a frame of 400 in one.
for scheme in light dark; do
  [ $scheme = dark ] && preference=0 || preference=1
  browse --blink-settings=preferredColorScheme=$preference --window-size=1400,2200 --screenshot="$pictures/$scheme-1400.png" >/dev/null
  browse --blink-settings=preferredColorScheme=$preference --force-device-scale-factor=1.25 --window-size=500,2400 --screenshot="$pictures/$scheme-400.png" >/dev/null
  for width in 400 1400; do
    [ "$(wc -c <"$pictures/$scheme-$width.png")" -gt 20000 ] || { echo "the picture $scheme-$width.png is empty"; exit 1; }
  done
done
if cmp -s "$pictures/light-1400.png" "$pictures/dark-1400.png"; then
  echo "light and dark look the same"
  exit 1
fi
echo "$(chromium --version 2>/dev/null | cut -d ' ' -f 1-2) shows the report"
