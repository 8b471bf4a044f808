#!/bin/sh
# check.sh PROGRAM: with every policy at its default, a step's instructions are within half a percent of those of the loop that one
# would write by hand. Counted by callgrind, without the start and the first update.
set -eu
program=$1
command -v valgrind >/dev/null || { echo "SKIPPED: there is no valgrind"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

valgrind --tool=callgrind --callgrind-out-file="$work/counts" --dump-before='counted_*' --dump-after='counted_*' "$program" \
  >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
# A dump a boundary: what came before and between is in the dumps that were triggered at a beginning.
after() { cat "$work"/counts* | sed -n "/^desc: Trigger: --dump-after=.*counted_$1/,/^totals:/s/^totals: //p" | head -n 1; }
keel=$(after keel) hand=$(after hand) bare=$(after bare)
echo "instructions in three updates: keel ${keel:-unknown}, the loop by hand ${hand:-unknown}, without the finite check ${bare:-unknown}"
awk -v keel="$keel" -v hand="$hand" -v bare="$bare" 'BEGIN {
  if (!(keel > 0 && hand > 0 && bare > 0)) exit 1
  printf "keel over the loop by hand: %+.3f %%; over one without the finite check: %+.3f %%\n", (keel / hand - 1) * 100, (keel / bare - 1) * 100
  exit !(keel <= hand * 1.005 && hand >= bare)
}'
