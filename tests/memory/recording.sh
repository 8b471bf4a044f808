#!/usr/bin/env bash
# recording.sh PROGRAM: Python's own pickle reads what a recording saved, and the file holds no opcode that could run anything.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
  echo "usage: $0 PROGRAM, which has the test of recordings" >&2
  exit 1
fi
if ! command -v python3 > /dev/null || ! python3 -c 'import pickle, pickletools' 2> /dev/null; then
  echo "SKIPPED: there is no python3 with pickle and pickletools"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
KEEL_SNAPSHOT="$folder/memory.pickle" "$1" "a recording is a pickle of plain values*" > "$folder/out" || { cat "$folder/out"; exit 1; }
python3 - "$folder/memory.pickle" << 'PYTHON'
import pickle, pickletools, sys
data = open(sys.argv[1], "rb").read()
allowed = {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "BININT", "LONG1", "BINUNICODE", "STOP"}
used = {opcode.name for opcode, argument, position in pickletools.genops(data)}
assert used <= allowed, used - allowed
snapshot = pickle.loads(data)
assert set(snapshot) == {"segments", "device_traces"}, set(snapshot)
assert [e["action"] for e in snapshot["device_traces"][0]] == ["alloc", "alloc", "free_requested", "free_completed", "oom"]
assert all(set(e) == {"action", "addr", "size", "stream", "time_us", "frames"} for e in snapshot["device_traces"][0])
(segment,) = snapshot["segments"]
assert segment["total_size"] == 1000 and segment["blocks"][0]["state"] == "active_allocated"
print("python", sys.version.split()[0], "read", len(data), "bytes with opcodes", *sorted(used))
PYTHON
