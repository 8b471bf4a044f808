#!/bin/sh
# fast_math.sh COMPILER ARG..: every header that looks at numbers refuses flags that take the looks away, and says what to do, with
# its bodies and without.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
for header in step/step.hpp clip/clip.hpp loss_scale/grad_scaler.hpp gradients/gradient_norm.hpp core/window_statistics.hpp; do
  echo "#include <keel/$header>" > "$folder/case.cpp"
  for flag in -ffast-math -ffinite-math-only "-ffast-math -DKEEL_COMPILED"; do
    # Word splitting is wanted: the last one is two arguments.
    # shellcheck disable=SC2086
    if "$@" -std=c++20 -fsyntax-only -Wfatal-errors $flag "$folder/case.cpp" > "$folder/said" 2>&1; then
      echo "$header compiles with $flag"
      failed=1
    elif ! grep -q 'error.*keel: -ffast-math and -ffinite-math-only let the compiler remove every check' "$folder/said"; then
      echo "$header fails with $flag, and not for its reason:"
      head -n 5 "$folder/said"
      failed=1
    fi
  done
done
# The twin: the rest of -ffast-math may stay.
if ! "$@" -std=c++20 -fsyntax-only -ffast-math -fno-finite-math-only "$folder/case.cpp"; then
  echo "the way out does not compile"
  failed=1
fi
exit $failed
