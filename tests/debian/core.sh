#!/usr/bin/env bash
# What every change must pass on each Debian, inside of a folder that on_debian.sh made: the umbrella header in silence, char_gpt,
# and the core of the run-time tests.
set -euo pipefail
. "$(dirname "$0")/../../.ci/prepare.sh"

export OMP_WAIT_POLICY=passive
# Word splitting is wanted: this is a list.
# shellcheck disable=SC2046
prepare catch2 libcli11-dev $(packages_of_gloo)
configure core -DKEEL_TESTS=ON -DKEEL_EXAMPLES=ON -DCMAKE_BUILD_TYPE=None
build core keel_tests_core char_gpt keel_umbrella
"$root/.build/core/tests/keel_tests_core"
cd "$(mktemp -d)"
"$root/.build/core/examples/char_gpt" --updates 3 --run-directory runs/core
echo "$(c++ --version | sed -n 1p), LibTorch $(dpkg-query -W -f='${Version}' libtorch-dev): the umbrella header, char_gpt and the core of the tests"
