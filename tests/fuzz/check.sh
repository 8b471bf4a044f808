#!/usr/bin/env bash
# check.sh CLANG SECONDS SOURCE FLAGS..: lets libFuzzer loose on the readers, from a few good files on. Fails on a crash, undefined
# behaviour, an exception that is not keel's, or an input that takes too long or too much memory; and if it tried too little.
set -euo pipefail
clang=$1
seconds=$2
source=$3
shift 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/corpus"
fuzzer=$folder/fuzzer
"$clang" -std=c++20 -O1 -g -Wno-deprecated-declarations -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined "$source" -o "$fuzzer" "$@"

# The length of the header, in eight bytes, and the header and its data.
tensors() {
  local header=$1 data=$2 length=${#1} bytes="" i
  for i in 0 1 2 3 4 5 6 7; do bytes+=$(printf '\\x%02x' $(((length >> (8 * i)) & 255))); done
  printf '\x00'"$bytes"'%s'"$data" "$header"
}
tensors '{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' '\x00\x00\x80\x3f\x00\x00\x00\xc0' >"$folder/corpus/one"
tensors '{"__metadata__":{"alias:b":"a"},"a":{"dtype":"BOOL","shape":[2,1],"data_offsets":[0,2]},"e":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}}' '\x00\x01' >"$folder/corpus/alias"
tensors '{}' '' >"$folder/corpus/none"
printf '\x02{"extra":false,"files":{"a":{"bytes":1,"xxh3":"00"},"b":{"bytes":2,"header":"1","tensors":{"w":"2"},"xxh3":"3"}},"format":2,"keel":"1","libtorch":"2","recipe":{},"update":7' >"$folder/corpus/manifest"

export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
"$fuzzer" -max_total_time="$seconds" -max_len=600 -timeout=10 -rss_limit_mb=6000 -print_final_stats=1 -artifact_prefix="$folder/" "$folder/corpus" >"$folder/log" 2>&1 || {
  tail -n 40 "$folder/log"
  for found in "$folder"/crash-* "$folder"/timeout-* "$folder"/oom-*; do [ -e "$found" ] && { echo "the input:"; xxd "$found" 2>/dev/null | head -n 20 || od -c "$found" | head -n 20; }; done
  exit 1
}
units=$(sed -n 's/.*number_of_executed_units: *//p' "$folder/log")
echo "$units inputs in $seconds s, $(ls "$folder/corpus" | wc -l) of them new ground; each was read or refused in words"
[ "$units" -ge $((seconds * 100)) ] || { echo "too few inputs to say anything"; exit 1; }
