#!/usr/bin/env bash
# unity.sh OUT FILE..: writes a translation unit that has several test files, each in a namespace with its name. Their includes come
# first; where a file includes them again, inside its namespace, they are empty. A file with `// unity: at global scope`, which
# specialises a template or defines a macro before an include, is in no namespace and comes before all.
set -euo pipefail
out=$1
shift
at_global_scope=()
in_namespaces=()
for file in "$@"; do
  if grep -q '^// unity: at global scope' "$file"; then at_global_scope+=("$file"); else in_namespaces+=("$file"); fi
done
{
  if [ ${#at_global_scope[@]} -gt 0 ]; then printf '#include "%s"\n' "${at_global_scope[@]}"; fi
  grep -hE '^#include <' "${in_namespaces[@]}" | sort -u
  for file in "${in_namespaces[@]}"; do
    folder=$(dirname "$file")
    sed -nE 's/^#include "(.*)"$/\1/p' "$file" | while IFS= read -r header; do realpath "$folder/$header"; done
  done | sort -u | sed 's/.*/#include "&"/'
  for file in "${in_namespaces[@]}"; do printf 'namespace %s {\n#include "%s"\n}\n' "$(basename "$file" .cpp)" "$file"; done
} >"$out"
