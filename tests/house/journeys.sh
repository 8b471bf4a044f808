#!/bin/sh
# journeys.sh PROGRAM
# Through how many of keel's files three things pass, on the call chains of PROGRAM, which is journeys.cpp without optimization: a micro-batch
# from fit() to the optimizer, a NaN to the report of the skipped update, a checkpoint to its first file. Fails above the limits below, or if
# a chain enters a file more than twice from another folder.
set -eu
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$program" "$folder/run" >"$folder/chains"
failed=0
while read -r journey chain; do
  case $journey in
    batch) most=12 ;;
    NaN) most=9 ;;
    *) most=12 ;;
  esac
  # The innermost call is first. Frames that are not keel's, as those of std::function, belong to no file.
  addr2line -e "$program" $chain | sed -n 's|:[0-9].*||; s|.*/include/keel/||p' | grep -v '^/' | tac | uniq >"$folder/files"
  awk -v journey="$journey" -v most="$most" '
    {
      chain = chain (NR == 1 ? "" : " > ") $0
      folder = $0
      sub(/\/.*/, "", folder)
      if (!($0 in entered)) ++files
      if (folder != before) ++entered[$0]
      else entered[$0] += 0
      before = folder
    }
    END {
      printf "%s: %d files (at most %d): %s\n", journey, files, most, chain
      for (file in entered) if (entered[file] > 2) { printf "%s enters %s %d times from another folder\n", journey, file, entered[file]; bad = 1 }
      exit files > most || files == 0 || bad
    }
  ' "$folder/files" || failed=1
done <"$folder/chains"
[ "$(wc -l <"$folder/chains")" -eq 3 ] || { echo "not all of the three places were reached"; failed=1; }
exit $failed
