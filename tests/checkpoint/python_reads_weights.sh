#!/usr/bin/env bash
# python_reads_weights.sh PROGRAM: Python reads merged weights by the specification of safetensors alone, with the values that keel wrote.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
  echo "usage: $0 PROGRAM, which has the tests of sharded checkpoints" >&2
  exit 1
fi
if ! command -v python3 > /dev/null || ! python3 -c 'import json, struct' 2> /dev/null; then
  echo "SKIPPED: there is no python3 with json and struct"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
KEEL_MERGED_WEIGHTS="$folder/merged.safetensors" "$1" "weights of slices are read whole*" > "$folder/out" || { cat "$folder/out"; exit 1; }
python3 - "$folder/merged.safetensors" << 'PYTHON'
import json, math, struct, sys
data = open(sys.argv[1], "rb").read()
(length,) = struct.unpack("<Q", data[:8])
header = json.loads(data[8 : 8 + length])
metadata = header.pop("__metadata__", {})
bytes_of = data[8 + length :]
sizes = {"F32": 4, "BF16": 2}
sums, end = {}, 0
for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
    begin, stop = entry["data_offsets"]
    assert begin == end, name
    end = stop
    assert stop - begin == sizes[entry["dtype"]] * math.prod(entry["shape"]), name
    raw = bytes_of[begin:stop]
    # bfloat16 is the upper half of a float32.
    if entry["dtype"] == "BF16":
        raw = b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2))
    # Weighted by position, so that exchanged elements show.
    sums[name] = sum((i % 7 + 1) * value for i, value in enumerate(struct.unpack(f"<{len(raw) // 4}f", raw)))
assert end == len(bytes_of)
# Tensors that share their values are stored once.
for key, stored in metadata.items():
    if key.startswith("alias:"):
        sums[key[len("alias:") :]] = sums[stored]
expected = dict(line.split() for line in open(sys.argv[1] + ".sums"))
assert set(expected) == set(sums), set(expected) ^ set(sums)
for name, value in expected.items():
    assert math.isclose(sums[name], float(value), rel_tol=1e-9, abs_tol=1e-9), (name, sums[name], value)
print("python", sys.version.split()[0], "read", len(sums), "tensors of", len(data), "bytes")
PYTHON
