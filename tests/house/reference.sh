#!/usr/bin/env bash
# reference.sh ROOT: Doxygen has nothing to say against the reference of .doxygen/Doxyfile: every public name has a comment, and pages link to
# what is there. Every header that keel/keel.hpp includes is public. Without Doxygen 1.9.4 it says SKIPPED and exits with 77.
set -euo pipefail
root=$1
if [[ "$(doxygen --version 2>/dev/null)" != 1.9.4* ]]; then
  echo "SKIPPED: there is no doxygen 1.9.4 here, and other versions find other things; Debian 12's package is doxygen."
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# warnings ROOT: what Doxygen and its filters say, with paths from ROOT.
warnings() {
  rm -rf "$folder/reference"
  mkdir "$folder/reference"
  (cd "$1" && KEEL_REFERENCE="$folder/reference" KEEL_VERSION=test doxygen .doxygen/Doxyfile) >"$folder/said" 2>&1
  cat "$folder/said" "$folder/reference/warnings" | sed "s,^$1/,,"
}

# The test can fail: each of these lines must be found.
mkdir -p "$folder/sample/include/keel/policy"
cp -r "$root/.doxygen" "$folder/sample"
sed -i '/^INPUT\|^USE_MDFILE/d' "$folder/sample/.doxygen/Doxyfile"
echo 'INPUT = include/keel/policy' >>"$folder/sample/.doxygen/Doxyfile"
cat >"$folder/sample/include/keel/policy/clip.hpp" <<'END'
// clip: a slot.
//   known   a policy in the list above the slot.
#pragma once
namespace keel::clip {
struct known {
  int member_of_known;
};
struct forgotten_policy {};
template <class Type>
concept forgotten_concept = true;
enum class forgotten_enum { one };
int forgotten_function();
/// Documented, as its member is not.
struct documented { int forgotten_member; };
}  // namespace keel::clip
namespace keel::detail {
struct inner { int of_inner; };
}  // namespace keel::detail
END
warnings "$folder/sample" >"$folder/found"
for name in member_of_known forgotten_policy forgotten_concept forgotten_enum forgotten_function forgotten_member; do
  grep -q "$name" "$folder/found" || { echo "self test: $name must be found and is not"; exit 1; }
done
for name in 'Compound.*::known' 'Compound.*::documented' inner; do
  ! grep "$name" "$folder/found" || { echo "self test: this must pass"; exit 1; }
done

failed=0
# One header a line, without blanks.
# shellcheck disable=SC2013
for header in $(sed -nE 's,^#include <(keel/[^>]*)>.*,include/\1,p' "$root/include/keel/keel.hpp"); do
  # It has no name of keel's.
  [ "$header" != include/keel/libtorch/ivalue_first.hpp ] || continue
  grep -q " $header\b" "$root/.doxygen/Doxyfile" || { echo "$header: keel/keel.hpp includes it, and .doxygen/Doxyfile does not name it"; failed=1; }
done
warnings "$root" >"$folder/found"
if [ -s "$folder/found" ]; then
  cat "$folder/found"
  echo "A name that is not for users belongs into a namespace detail; a policy is described in the list at its header's head."
  failed=1
fi
# Doxygen may also end with an error or read nothing.
[ -f "$folder/reference/html/classkeel_1_1trainer.html" ] || { echo "the reference lacks keel::trainer"; failed=1; }
[ "$failed" -eq 0 ] || exit 1
echo "$(find "$folder/reference/html" -name '*.html' ! -name '*-members.html' | wc -l) pages, no warning"
