#!/usr/bin/env bash
# floors.sh INCLUDE | floors.sh --self-test: keel's headers include only from their own floor or a lower one, and no folder comes back
# to itself by what it includes; the two lower floors need a compiler and nothing else, talking to other ranks has its folder, no
# header brings torch/torch.h or a macro, and none has more than 940 lines, which is where to ask whether it holds more than one
# thing. Prints the folders, each with those that it includes from. Before it judges INCLUDE, it shows on one bad header after another
# that it can fail.
set -euo pipefail
longest=940

# The floor of a path below INCLUDE; nothing for one that has no place in the house. On floor 4 a folder bears its slot's name.
floor_of() {
  case $1 in
    keel/policy/*) echo 1 ;;
    keel/config/* | keel/rule/* | keel/recipe/* | keel/recipe.hpp) echo 2 ;;
    keel/libtorch/* | keel/core/*) echo 3 ;;
    keel/step/*) echo 5 ;;
    keel/trainer/*) echo 6 ;;
    keel/diagnose/* | keel/rl/*) echo 7 ;;
    keel/keel.hpp | keel/compiled/* | keel/tools/*) echo 8 ;;
    keel/collective/* | keel/gradients/* | keel/optimizer/* | keel/lora/* | keel/memory/* | keel/metrics/* | keel/json/*) echo 4 ;;
    keel/*/*)
      local folder=${1#keel/}
      folder=${folder%%/*}
      if [ -f "$2/keel/policy/$folder.hpp" ]; then echo 4; fi
      ;;
  esac
}

# check_header INCLUDE HEADER: a line on standard output for each thing that is wrong.
check_header() {
  local file=$1/$2 header=$2 floor target target_floor begins ends lines
  floor=$(floor_of "$header" "$1")
  if [ -z "$floor" ]; then
    echo "$header: has no floor; put it on one, or name its directory in floors.sh"
    return
  fi

  while IFS= read -r target; do
    case $target in
      '<keel/'*'>')
        target=${target#<}
        target=${target%>}
        target_floor=$(floor_of "$target" "$1")
        if [ ! -f "$1/$target" ]; then
          echo "$header: includes $target, which does not exist"
        elif [ -n "$target_floor" ] && [ "$target_floor" -gt "$floor" ]; then
          echo "$header: on floor $floor includes $target of floor $target_floor"
        fi
        ;;
      '<torch/torch.h>' | '<torch/all.h>' | '<torch/extension.h>')
        echo "$header: includes $target, which is all of LibTorch; name the headers that it needs"
        ;&
      '<torch/'* | '<ATen/'* | '<c10/'* | '<caffe2/'* | '<boost/'* | '<range/'* | '<nlohmann/'* | '<xxhash.h>')
        if [ "$floor" -le 2 ]; then echo "$header: on floor $floor includes $target, and may need only a compiler"; fi
        ;;
      '<'*'>') ;;
      *) echo "$header: includes $target; write <keel/..> in angle brackets, so that its floor can be read" ;;
    esac
  done < <(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*([^[:space:]]+).*/\1/p' "$file")

  # Talking to other ranks has one folder (S03), and clipping is keel's own pass (G10).
  case $header in
    keel/collective/*) ;;
    *)
      if grep -q 'torch/csrc/distributed' "$file"; then echo "$header: includes distributed headers, whose folder is keel/collective"; fi
      ;;
  esac
  if grep -qE 'nn/utils/clip_grad|nn::utils::clip_grad' "$file"; then echo "$header: clips with LibTorch's clip_grad, which waits for the device"; fi

  case $header in
    keel/rule/detail/*.inc | keel/libtorch/detail/*.inc | keel/libtorch/mode.hpp) ;;
    *)
      # The last line about a macro undoes it.
      for macro in $(sed -nE 's/^[[:space:]]*#[[:space:]]*define[[:space:]]+([A-Za-z0-9_]+).*/\1/p' "$file" | sort -u); do
        if ! grep -E "^[[:space:]]*#[[:space:]]*(define|undef)[[:space:]]+$macro\b" "$file" | tail -n 1 | grep -q undef; then
          echo "$header: defines the macro $macro"
        fi
      done
      ;;
  esac

  # Each begin has an end behind it, before the next begin.
  begins=$(grep -oE 'detail/text_(begin|end)\.inc' "$file" | sed -E 's/.*_(begin|end)\.inc/\1/' | tr '\n' ' ' || true)
  ends=${begins//begin end /}
  if [ -n "$ends" ]; then echo "$header: text_begin.inc and text_end.inc do not match: $begins"; fi

  lines=$(wc -l < "$file")
  if [ "$lines" -gt "$longest" ]; then echo "$header: has $lines lines, more than $longest; divide it"; fi
}

# folders INCLUDE: each arrow from a folder to one that it includes from.
folders() {
  (cd "$1" && grep -rEo '^[[:space:]]*#[[:space:]]*include[[:space:]]*<keel/[a-z_]+/' keel) |
    sed -nE 's,^keel/([a-z_]+)/[^:]*:.*<keel/([a-z_]+)/$,\1 \2,p' | awk '$1 != $2' | sort -u
}

# without_mode INCLUDE: the headers that open a namespace of the mode and see no keel/libtorch/mode.hpp before it, without which the
# namespace would bear the macro's name.
without_mode() {
  (cd "$1" && find keel \( -name '*.hpp' -o -name '*.ipp' \) -exec awk '
    FNR == 1 { opens = 0 }
    !opens && match($0, /^#include <keel\/[^>]+>/) { print FILENAME, substr($0, 11, RLENGTH - 11) }
    /inline KEEL_MODE/ && !opens { opens = 1; print FILENAME, "!" }' {} +) |
    awk '
      $2 == "!" { opens[$1] = 1; next }
      { from[++edges] = $1; to[edges] = $2 }
      END {
        sees["keel/libtorch/mode.hpp"] = 1
        for (changed = 1; changed;) {
          changed = 0
          for (i = 1; i <= edges; ++i) if (sees[to[i]] && !sees[from[i]]) sees[from[i]] = changed = 1
        }
        for (header in opens) if (!sees[header]) print header ": opens a namespace of the mode without keel/libtorch/mode.hpp"
      }' | sort
}

# check_tree INCLUDE: fails if anything is wrong, or if there is nothing to look at.
check_tree() {
  local include=$1 header said count=0 wrong=0
  if [ ! -d "$include/keel" ]; then
    echo "$include/keel is no directory"
    return 1
  fi
  while IFS= read -r header; do
    count=$((count + 1))
    said=$(check_header "$include" "$header")
    if [ -n "$said" ]; then
      echo "$said"
      wrong=$((wrong + $(printf '%s\n' "$said" | wc -l)))
    fi
  done < <(cd "$include" && find keel -name '*.hpp' -o -name '*.inc' -o -name '*.h' -o -name '*.ipp' | sort)
  if [ "$count" -eq 0 ]; then
    echo "$include/keel has no headers"
    return 1
  fi
  said=$(without_mode "$include")
  if [ -n "$said" ]; then
    echo "$said"
    wrong=$((wrong + $(printf '%s\n' "$said" | wc -l)))
  fi
  if [ "$wrong" -ne 0 ]; then
    echo "$wrong things are wrong in $count headers"
    return 1
  fi
  local loop
  if ! loop=$(folders "$include" | tsort 2>&1 >/dev/null); then
    echo "folders that come back to themselves: $(printf '%s\n' "$loop" | sed -n 's/^tsort: \([a-z_]*\)$/\1/p' | tr '\n' ' ')"
    return 1
  fi
  echo "$count headers keep to their floors"
}

self_test() {
  local folder tree said cases=0 misjudged=0
  folder=$(mktemp -d)
  # shellcheck disable=SC2064  # the directory of now
  trap "rm -rf '$folder'" EXIT

  # new_tree: a small house in good order, to which a case adds one header.
  new_tree() {
    cases=$((cases + 1))
    tree=$folder/$cases
    mkdir -p "$tree"/keel/{policy,rule/detail,config,recipe,core,clip,memory,step,trainer}
    echo '#include <type_traits>' > "$tree/keel/policy/slot.hpp"
    echo '#define KEEL_RULE_TEXT(ID) ID' > "$tree/keel/rule/detail/text_begin.inc"
    echo '#undef KEEL_RULE_TEXT' > "$tree/keel/rule/detail/text_end.inc"
    echo '#include <keel/policy/slot.hpp>' > "$tree/keel/policy/clip.hpp"
    printf '#include <keel/%s>\n' rule/detail/text_begin.inc config/config.hpp rule/detail/text_end.inc > "$tree/keel/rule/rule.hpp"
    echo '#include <keel/policy/slot.hpp>' > "$tree/keel/config/config.hpp"
    echo '#include <keel/rule/rule.hpp>' > "$tree/keel/recipe/valid.hpp"
    echo '#include <keel/core/error.hpp>' > "$tree/keel/clip/clip.hpp"
    echo '#include <keel/clip/clip.hpp>' > "$tree/keel/memory/memory.hpp"
    printf '#include <%s>\n' ATen/core/Tensor.h keel/rule/rule.hpp keel/core/error.hpp > "$tree/keel/step/step.hpp"
    echo '#include <string>' > "$tree/keel/core/error.hpp"
    printf '#include <%s>\n' boost/hana/tuple.hpp keel/step/step.hpp > "$tree/keel/trainer/trainer.hpp"
    echo '#include <keel/trainer/trainer.hpp>' > "$tree/keel/keel.hpp"
  }
  accepts() {
    if ! said=$(check_tree "$tree"); then
      echo "self test: must be accepted and is not: $said"
      misjudged=$((misjudged + 1))
    fi
  }
  # refuses "WORDS" HEADER "LINES": the house with this one header in it is refused, for this reason alone.
  refuses() {
    new_tree
    mkdir -p "$(dirname "$tree/$2")"
    printf '%b\n' "$3" > "$tree/$2"
    if said=$(check_tree "$tree"); then
      echo "self test: $2 must be refused because of '$1' and is accepted"
      misjudged=$((misjudged + 1))
    elif [ "$(printf '%s\n' "$said" | wc -l)" -ne 2 ] || [[ $said != *"$2: $1"* ]]; then
      echo "self test: $2 must be refused because of '$1' alone and is because of: $said"
      misjudged=$((misjudged + 1))
    fi
  }

  new_tree
  accepts
  refuses 'on floor 1 includes keel/rule/rule.hpp of floor 2' keel/policy/bad.hpp '#include <keel/rule/rule.hpp>'
  refuses 'on floor 1 includes keel/core/error.hpp of floor 3' keel/policy/bad.hpp '  #  include <keel/core/error.hpp>'
  refuses 'on floor 2 includes keel/step/step.hpp of floor 5' keel/recipe/bad.hpp '#include <keel/step/step.hpp>'
  refuses 'on floor 2 includes keel/step/step.hpp of floor 5' keel/recipe.hpp '#include <keel/step/step.hpp>'
  refuses 'on floor 3 includes keel/clip/clip.hpp of floor 4' keel/core/bad.hpp '#include <keel/clip/clip.hpp>'
  refuses 'on floor 4 includes keel/step/step.hpp of floor 5' keel/clip/bad.hpp '#include <keel/step/step.hpp>'
  refuses 'on floor 5 includes keel/trainer/trainer.hpp of floor 6' keel/step/bad.hpp '#include <keel/trainer/trainer.hpp>'
  refuses 'on floor 6 includes keel/keel.hpp of floor 8' keel/trainer/bad.hpp '#include <keel/keel.hpp>'
  refuses 'on floor 1 includes <torch/version.h>' keel/policy/bad.hpp '#include <torch/version.h>'
  refuses 'on floor 2 includes <ATen/ATen.h>' keel/rule/bad.hpp '#include <ATen/ATen.h>'
  refuses 'on floor 2 includes <c10/core/Device.h>' keel/recipe/bad.hpp '#include <c10/core/Device.h>'
  refuses 'on floor 2 includes <boost/hana.hpp>' keel/rule/bad.hpp '#include <boost/hana.hpp>'
  refuses 'on floor 2 includes <range/v3/all.hpp>' keel/rule/bad.hpp '#include <range/v3/all.hpp>'
  refuses 'on floor 2 includes <nlohmann/json.hpp>' keel/rule/detail/bad.inc '#include <nlohmann/json.hpp>'
  refuses 'includes distributed headers' keel/memory/bad.hpp '#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>'
  refuses "clips with LibTorch's clip_grad" keel/step/bad.hpp '#include <torch/nn/utils/clip_grad.h>'
  refuses 'includes <torch/torch.h>' keel/trainer/bad.hpp '#include <torch/torch.h>'
  refuses 'includes "step.hpp"' keel/step/bad.hpp '#include "step.hpp"'
  refuses 'includes keel/step/gone.hpp, which does not exist' keel/step/bad.hpp '#include <keel/step/gone.hpp>'
  refuses 'has no floor' keel/attic/bad.hpp '#include <string>'
  refuses 'defines the macro KEEL_BAD' keel/trainer/bad.hpp '#define KEEL_BAD 1'
  refuses 'defines the macro KEEL_BAD' keel/trainer/bad.hpp $'#undef KEEL_BAD\n#define KEEL_BAD 1'
  refuses 'opens a namespace of the mode' keel/step/bad.hpp 'namespace keel::inline KEEL_MODE {}'
  refuses 'opens a namespace of the mode' keel/step/bad.hpp '#include <keel/core/error.hpp>\nnamespace keel::inline KEEL_MODE {}'
  refuses 'text_begin.inc and text_end.inc do not match' keel/rule/bad.hpp '#include <keel/rule/detail/text_begin.inc>'
  refuses 'text_begin.inc and text_end.inc do not match' keel/rule/bad.hpp \
    '#include <keel/rule/detail/text_end.inc>\n#include <keel/rule/detail/text_begin.inc>'
  refuses "has $((longest + 1)) lines" keel/step/bad.hpp "$(printf '//\\n%.0s' $(seq "$longest"))//"
  # Of one floor, each fine alone: clip includes from memory, which includes from clip.
  new_tree
  echo '#include <keel/memory/memory.hpp>' > "$tree/keel/clip/bad.hpp"
  if said=$(check_tree "$tree"); then
    echo "self test: two folders that include from each other must be refused and are accepted"
    misjudged=$((misjudged + 1))
  elif [[ $said != *"come back to themselves: clip memory"* && $said != *"come back to themselves: memory clip"* ]]; then
    echo "self test: two folders that include from each other must be refused by their names and not because of: $said"
    misjudged=$((misjudged + 1))
  fi
  mkdir -p "$folder/empty/keel"
  for tree in "$folder/empty" "$folder/nowhere"; do
    cases=$((cases + 1))
    if said=$(check_tree "$tree"); then
      echo "self test: a directory without headers must be refused and is accepted"
      misjudged=$((misjudged + 1))
    fi
  done
  if [ "$misjudged" -ne 0 ]; then
    echo "floors.sh misjudged $misjudged of $cases houses"
    return 1
  fi
  echo "self test: $cases houses judged rightly"
}

if [ $# -ne 1 ]; then
  echo "usage: $0 INCLUDE | $0 --self-test" >&2
  exit 1
fi
self_test || exit 1
if [ "$1" != --self-test ]; then
  folders "$1" | awk '{ to[$1] = to[$1] " " $2 } END { for (one in to) print one " ->" to[one] }' | sort
  check_tree "$1" || exit 1
fi
