#!/usr/bin/env bash
# on_debian.sh debian13|debian-testing [--core | -- COMMAND.. | ARGS OF tests/run..]: tests/run in a folder that holds another Debian, with
# its compiler and its LibTorch and nothing else installed. --core: only tests/debian/core.sh, what every change must pass there.
# The folder, .build/debian13 or .build/debian-testing, is made by debootstrap the first time and stays. Where this is no machine
# on which root may mount and chroot, it says SKIPPED and why, and exits with 77.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/.ci/prepare.sh"

name=${1:-}
case $name in
  debian13) suite=trixie ;;
  debian-testing) suite=testing ;;
  *)
    echo "usage: $0 debian13|debian-testing [--core | -- COMMAND.. | ARGS OF tests/run..]" >&2
    exit 2
    ;;
esac
shift
case ${1:-} in
  --core) set -- tests/debian/core.sh ;;
  --) shift ;;
  *) set -- tests/run "$@" ;;
esac

skip() {
  echo "SKIPPED: tests/run --on $name: $*"
  exit 77
}
[ -z "${KEEL_ON_DEBIAN:-}" ] || skip "this is a folder with another Debian already."
[ "$(id -u)" -eq 0 ] || skip "only root can make a folder with another Debian."
command -v apt-get >/dev/null || skip "debootstrap needs a Debian."
probe=$(mktemp -d)
may_mount=yes
unshare --mount --pid --fork mount -t tmpfs none "$probe" 2>/dev/null || may_mount=no
rmdir "$probe"
[ $may_mount = yes ] || skip "this machine lets root mount nothing."
only_these debootstrap

folder=$root/.build/$name
log=$root/.build/$name.log
mkdir -p "$root/.build"
# One at a time in a folder.
exec 9>"$folder.lock"
flock 9
if [ ! -e "$folder/.complete" ]; then
  echo "making a folder with $name; a minute or two"
  rm -rf "$folder"
  # Its mounts, too, are in a namespace that ends with it.
  if ! unshare --mount --pid --fork --kill-child debootstrap --variant=minbase "$suite" "$folder" ${KEEL_DEBIAN_MIRROR:+"$KEEL_DEBIAN_MIRROR"} >"$log" 2>&1; then
    tail -n 20 "$log" "$folder/debootstrap/debootstrap.log" >&2 || true
    echo "tests/run --on $name: debootstrap failed; another mirror is named by KEEL_DEBIAN_MIRROR." >&2
    exit 1
  fi
  touch "$folder/.complete"
fi
cp /etc/resolv.conf "$folder/etc/resolv.conf"
# The lists of a mirror that stands still expire.
echo 'Acquire::Check-Valid-Until "false";' >"$folder/etc/apt/apt.conf.d/expired-lists"
if [ -e "$folder/keel/tests" ]; then find "$folder/keel" -mindepth 1 -maxdepth 1 ! -name .build -exec rm -rf {} +; fi
mkdir -p "$folder/keel"
(cd "$root" && tar --exclude=./.build --exclude=./.cuda --exclude=./.git --exclude=./runs -cf - .) | tar -C "$folder/keel" -xf -

# The mounts are in a namespace that ends with the command, so that no removal of the folder ever meets /dev.
exec unshare --mount --pid --fork --kill-child bash -c '
  mount --make-rprivate / &&
  mount -t proc proc "$0/proc" &&
  mount --rbind /dev "$0/dev" &&
  exec chroot "$0" /usr/bin/env -i HOME=/root KEEL_ON_DEBIAN=1 PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 ${http_proxy:+http_proxy="$http_proxy"} \
    ${https_proxy:+https_proxy="$https_proxy"} /bin/bash -c "cd /keel && exec \"\$@\"" bash "$@"' "$folder" "$@"
