# What scripts share that start programs and look at them: source it with `set -euo pipefail` in force. It makes the folder
# `$work`; programs put into `$pids` are ended at the end, and after a failure the logs in the folder are shown.
work="$(mktemp -d)"
pids=()

finish() {
  local code=$?
  if [ ${#pids[@]} -gt 0 ]; then
    kill "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
  fi
  if [ "$code" != 0 ]; then
    for log in "$work"/*.log; do printf -- '--- %s\n' "${log##*/}" >&2; tail -n 30 "$log" >&2; done
  fi
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT

die() { printf '%s: %s\n' "${0##*/}" "$1" >&2; exit 1; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Tries a command for at most 30 s.
within() {
  local what="$1" end=$((SECONDS + 30))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || die "not within 30 s: $what"
    sleep 0.2
  done
}
