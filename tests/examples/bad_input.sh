#!/usr/bin/env bash
# bad_input.sh CHAR_GPT: each bad input ends the program with a code that is not zero and a sentence that names the thing, without a
# stack trace, and nothing that was saved before is lost. What this machine cannot show is counted as skipped, in words.
set -euo pipefail
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
  echo "usage: $0 CHAR_GPT, a program that exists" >&2
  exit 1
fi
char_gpt=$(realpath "$1")
export OMP_NUM_THREADS=1
umask 022

folder=$(mktemp -d)
chmod 755 "$folder" # an unprivileged user is to come this far
mounted=
finish() {
  [ -z "$mounted" ] || umount "$mounted"
  chmod -R u+rwX "$folder"
  rm -rf "$folder"
}
trap finish EXIT
cd "$folder"

count=0
skipped=0
wrong=0
failed() {
  echo "WRONG: $1" >&2
  wrong=$((wrong + 1))
}
skip() {
  echo "SKIPPED: $1"
  skipped=$((skipped + 1))
}

# What is saved in the run directories, to the byte. events.jsonl and console.log grow by what was refused, the lock holds the last
# process: left out.
fingerprint() { find "$@" -type f ! -name events.jsonl ! -name console.log ! -name lock -exec cksum {} + | sort; }

# refused NAME "WORDS" COMMAND..: the command fails, says WORDS, and leaves what is saved as it is.
refused() {
  local name=$1 words=$2 code=0 before
  shift 2
  before=$(fingerprint saved)
  timeout 120 "$@" > out 2> err < /dev/null || code=$?
  count=$((count + 1))
  if [ "$code" -eq 0 ]; then
    failed "$name: the exit code is 0"
  elif [ "$code" -ge 124 ]; then
    failed "$name: the program was killed or did not end (code $code): $(tail -n 3 err)"
  elif ! grep -qF -- "$words" err; then
    failed "$name: standard error does not say '$words' but: $(head -n 5 err)"
  elif [ "$(wc -l < err)" -gt 4 ] || grep -qE 'frame #|Exception raised from|terminate called|Backtrace|what\(\)' out err; then
    failed "$name: a trace, where a sentence does: $(head -n 12 err)"
  elif [ "$(fingerprint saved)" != "$before" ]; then
    failed "$name: what was saved before has changed"
  else
    echo "refused: $name: $(grep -F -- "$words" err | head -n 1)"
  fi
}

try=("$char_gpt" --threads 1)

# Two texts with other characters; the sample's prompt has to be in both.
for i in $(seq 60); do echo "The licensee may copy line $i of this text as often as wanted."; done > text
tr 'mcpx' 'MCPX' < text | sed 's/$/ #%&/' > other_text
mkdir empty_directory
: > empty_file
head -c 300 text > short_file
echo "a file" > file

echo "-- a run of two updates, which nothing below may harm"
mkdir saved
"${try[@]}" --text text --run-directory saved/run --updates 2 > out 2> err || {
  cat out err >&2
  echo "a good input must be accepted first" >&2
  exit 1
}

refused "a text that does not exist" /does/not/exist "${try[@]}" --run-directory unused --text /does/not/exist
refused "an empty text" empty_file "${try[@]}" --run-directory unused --text empty_file
refused "a folder without files" empty_directory "${try[@]}" --run-directory unused --text empty_directory
refused "a text that is too short" "short_file has 300 characters" "${try[@]}" --run-directory unused --text short_file
refused "an unknown option" --colour "${try[@]}" --run-directory unused --text text --colour
refused "no update" --updates "${try[@]}" --run-directory unused --text text --updates 0
refused "a negative number of updates" --updates "${try[@]}" --run-directory unused --text text --updates -3
refused "updates that are no number" --updates "${try[@]}" --run-directory unused --text text --updates x
refused "an option without its value" --text "${try[@]}" --run-directory unused --text
[ ! -e unused ] || failed "a run directory was made for an input that was refused"

refused "a run directory that is a file" "$folder/file" "${try[@]}" --text text --updates 2 --run-directory "$folder/file"
refused "a run directory below a file" file/run "${try[@]}" --text text --updates 2 --run-directory file/run
[ "$(cat file)" = "a file" ] || failed "the file that was named as run directory has changed"
refused "a run of another text" "[E04] $folder/saved/run/checkpoints/step-000000002: " "${try[@]}" --text other_text --updates 2 --run-directory saved/run
refused "a run of another length" "[E03] $folder/saved/run/checkpoints/step-000000002 " "${try[@]}" --text text --updates 3 --run-directory saved/run
exec 9> saved/run/lock
flock -n 9
refused "a run directory in use" "[E01] another run is using $folder/saved/run" "${try[@]}" --text text --updates 2 --run-directory saved/run
exec 9>&-

# Root reads and writes everything, so these need somebody else.
ordinary=("${try[@]}")
can_be_refused=yes
if [ "$(id -u)" -eq 0 ]; then
  ordinary=(setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all "${try[@]}")
  "${ordinary[@]}" --help > out 2> err || can_be_refused=no
fi
if [ $can_be_refused = yes ]; then
  cp text unreadable
  chmod 000 unreadable
  mkdir closed_directory
  chmod 000 closed_directory
  mkdir read_only
  cp -r saved/run read_only/run
  chmod -R a-w,a+rX read_only
  before=$(fingerprint read_only)
  refused "a text that may not be read" unreadable "${ordinary[@]}" --run-directory unused --text unreadable
  refused "a folder that may not be read" closed_directory "${ordinary[@]}" --run-directory unused --text closed_directory
  refused "a run directory that may not be written" read_only/run "${ordinary[@]}" --text text --updates 2 --run-directory read_only/run
  refused "a run directory that may not be made" read_only/new "${ordinary[@]}" --text text --updates 2 --run-directory read_only/new
  [ "$(fingerprint read_only)" = "$before" ] || failed "a read-only run directory has changed"
else
  for what in "a text that may not be read" "a folder that may not be read" "a run directory that may not be written" "a run directory that may not be made"; do
    skip "root reads everything, and no other user can be taken here: $what"
  done
fi

# some_updates DIRECTORY: a run that is stopped when it has recorded an update more, as a scheduler would; its exit code.
some_updates() {
  local lines=0 now process code=0
  [ ! -f "$1/metrics.jsonl" ] || lines=$(wc -l < "$1/metrics.jsonl")
  "${try[@]}" --text text --updates 400 --run-directory "$1" > run_out 2> run_err &
  process=$!
  now=$lines
  while [ "$now" -le "$lines" ] && kill -0 "$process" 2> kill_err; do
    sleep 0.1
    [ ! -f "$1/metrics.jsonl" ] || now=$(wc -l < "$1/metrics.jsonl")
  done
  kill -TERM "$process" 2> kill_err || true
  wait "$process" || code=$?
  cat run_out
  cat run_err >&2
  return "$code"
}
mkdir small full
if mount -t tmpfs -o size=1m tmpfs small 2> err; then
  mounted=$folder/small
  refused "a disk with no room for the first checkpoint" "No space left on device" "${try[@]}" --text text --updates 2 --run-directory small/run
  if compgen -G 'small/run/checkpoints/*' > out; then failed "a checkpoint that has no room is left behind: $(cat out)"; fi
  umount small
  mounted=

  # One checkpoint has room, and then somebody fills the disk.
  mount -t tmpfs -o size=48m tmpfs full
  mounted=$folder/full
  code=0
  (some_updates full/run) > out 2> err || code=$?
  [ "$code" -eq 143 ] || failed "a run that is stopped by SIGTERM ends with 143, not $code: $(cat out err)"
  checkpoints=$(fingerprint full/run/checkpoints)
  head -c 64M /dev/zero > full/filler 2> err || true
  export -f some_updates
  export char_gpt
  # shellcheck disable=SC2016  # the inner shell expands it
  refused "a disk that fills up during the run" "No space left on device" bash -c 'try=("$char_gpt" --threads 1); some_updates full/run'
  [ "$(fingerprint full/run/checkpoints)" = "$checkpoints" ] || failed "the full disk cost a checkpoint"
  rm full/filler
  code=0
  (some_updates full/run) > out 2> err || code=$?
  if [ "$code" -ne 143 ] || ! grep -q 'resumed at update' out; then failed "the run does not go on when there is room again (code $code): $(cat out err)"; fi
  umount full
  mounted=
else
  skip "only root may mount a small disk: a disk with no room for the first checkpoint"
  skip "only root may mount a small disk: a disk that fills up during the run"
fi

"${try[@]}" --text text --updates 2 --run-directory saved/run > out 2> err || failed "the run of before cannot be opened any more: $(cat err)"
grep -q 'resumed at update 2' out || failed "the run of before is not the one that was found: $(cat out)"

if [ "$wrong" -ne 0 ]; then
  echo "$wrong things are wrong" >&2
  exit 1
fi
echo "$count bad inputs, all refused by name; $skipped skipped"
