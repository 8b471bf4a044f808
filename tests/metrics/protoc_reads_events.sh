#!/usr/bin/env bash
# protoc_reads_events.sh PROGRAM: protoc decodes what a tensorboard_writer wrote, by a schema of the public names, and finds every field
# in its place; Python's zlib has no CRC-32C, so the checksums are tensorboard_writer_test's.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
  echo "usage: $0 PROGRAM, which has the test that writes an event file" >&2
  exit 1
fi
for tool in protoc python3; do
  if ! command -v $tool >/dev/null; then
    echo "SKIPPED: there is no $tool"
    exit 0
  fi
done
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
KEEL_EVENTS="$folder" "$1" "*histograms and text are read back*" >"$folder/out" || { cat "$folder/out"; exit 1; }
# A file per event, without its frame.
python3 - "$folder" <<'PYTHON'
import glob, struct, sys
(name,) = glob.glob(sys.argv[1] + "/events.out.tfevents.*")
data, at, count = open(name, "rb").read(), 0, 0
while at < len(data):
    (length,) = struct.unpack_from("<Q", data, at)
    open(f"{sys.argv[1]}/event-{count:03}", "wb").write(data[at + 12 : at + 12 + length])
    at, count = at + 16 + length, count + 1
assert at == len(data) and count > 5, (at, len(data), count)
PYTHON
for event in "$folder"/event-*; do protoc --proto_path="$here" --decode=Event "$here/event.proto" <"$event"; done >"$folder/decoded"
for line in 'file_version: "brain.Event:2"' 'tag: "train/loss"' 'simple_value: 0.25' 'simple_value: inf' 'simple_value: -inf' 'simple_value: nan' \
  'step: 9223372036854775807' 'step: 300' 'tag: "a tag with \"quotes\" and \303\251"' 'plugin_name: "text"' 'dtype: 7' \
  'string_val: "# Title\n\nwords"' 'max: 99' 'num: 100' 'sum: 4950' 'sum_squares: 328350' 'bucket_limit: 24.75' 'bucket: 25'; do
  grep -qF -- "$line" "$folder/decoded" || { cat "$folder/decoded"; echo "protoc does not find $line"; exit 1; }
done
if grep -E '^ *[0-9]+[: ]' "$folder/decoded"; then
  echo "protoc finds fields that the schema does not have"
  exit 1
fi
echo "protoc $(protoc --version | cut -d ' ' -f 2) decodes $(ls "$folder"/event-* | wc -l) events"
