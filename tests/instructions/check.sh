#!/bin/sh
# check.sh PROGRAM: with every policy at its default, a step's instructions are within half a percent of those of the loop that one
# would write by hand. Counted by callgrind, without the start and the first update.
set -eu
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

valgrind --tool=callgrind --callgrind-out-file="$work/counts" --instr-atstart=no "$program" \
  >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
in_part() { cat "$work"/counts* | sed -n "/^desc: Trigger: Client Request: $1/,/^totals:/s/^totals: //p" | head -n 1; }
keel=$(in_part keel) hand=$(in_part hand) bare=$(in_part bare)
echo "instructions of an update: keel ${keel:-unknown}, the loop by hand ${hand:-unknown}, without the finite check ${bare:-unknown}"
awk -v keel="$keel" -v hand="$hand" -v bare="$bare" 'BEGIN {
  if (!(keel > 0 && hand > 0 && bare > 0)) exit 1
  printf "keel over the loop by hand: %+.3f %%; over one without the finite check: %+.3f %%\n", (keel / hand - 1) * 100, (keel / bare - 1) * 100
  exit !(keel <= hand * 1.005 && hand >= bare)
}'
