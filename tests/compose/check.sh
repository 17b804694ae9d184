#!/usr/bin/env bash
# docker-compose.yml, the Dockerfiles and the configurations they mount, as far as they can be held without Docker's engine.
# Argument: the exporter's binary, which is started as its service would start it. Needs docker-compose, promtool, amtool and
# curl on the PATH; PYTHON names a Python that has PyYAML.
set -euo pipefail
cd "$(dirname "$0")/../.."
exporter="$(realpath "$1")"
python="${PYTHON:-python3}"
work="$(mktemp -d)"
pid=''

finish() {
  local code=$?
  if [ -n "$pid" ]; then kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; fi
  if [ "$code" != 0 ] && [ -s "$work/exporter.log" ]; then cat "$work/exporter.log" >&2; fi
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT
: >"$work/.env"

die() { printf 'compose: %s\n' "$1" >&2; exit 1; }
for tool in docker-compose promtool amtool curl; do
  command -v "$tool" >/dev/null 2>&1 || die "$tool is missing"
done

# Prints what a command said only if it failed.
quietly() {
  local out
  if ! out="$("$@" 2>&1)"; then printf '%s\n' "$out" >&2; die "failed: $*"; fi
}

# As on a machine where nothing is set: what is somebody's own must not decide.
compose() {
  env -u AGENT_UID -u AGENT_GID -u ALERTMANAGER_CONFIG -u AGENT_SERVER_PORTS -u COMPOSE_FILE HOME=/home/somebody \
    docker-compose --env-file "$work/.env" "$@"
}

for files in "-f docker-compose.yml" "-f docker-compose.yml -f alerts/compose/linux.yml"; do
  # shellcheck disable=SC2086  # Several words.
  said="$(compose $files config -q 2>&1)" || die "docker-compose $files config: $said"
  [ -z "$said" ] || die "docker-compose $files config is not clean: $said"
done
compose -f docker-compose.yml config >"$work/compose.yml"
compose -f docker-compose.yml -f alerts/compose/linux.yml config >"$work/linux.yml"

quietly promtool check config alerts/compose/prometheus.yml
quietly amtool check-config alerts/compose/alertmanager.yml
quietly amtool config routes test --config.file=alerts/compose/alertmanager.yml --verify.receivers=nobody \
  alertname=AgentSessionExporterDown severity=critical
"$python" tests/compose/check.py "$work/compose.yml" "$work/linux.yml" "$work"

# What the image is built from is whole as far as cargo can tell without building it.
(cd "$work/context" && cargo tree --locked --offline --quiet -e normal,build >/dev/null) ||
  die "the image cannot be built: see .dockerignore"

# The service, but for its port: Prometheus gets its metrics, another name does not, and the health check can tell.
port="$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
mapfile -t flags < <(sed -e "s|10077|$port|" -e "s|=/|=$work/|" "$work/flags")
mapfile -t health < <(sed -e "s|10077|$port|" "$work/health")
[ ${#flags[@]} -gt 0 ] && [ ${#health[@]} -gt 0 ] || die "there are no flags or no health check"
if "${health[@]}" 2>/dev/null; then die "the health check is content without an exporter"; fi
mkdir -p "$work/agents/.claude" "$work/agents/.codex" "$work/var/lib/agent-session-exporter"
mapfile -t variables < <(sed "s|10077|$port|" "$work/variables")
env -u CODEX_HOME "${variables[@]}" "$exporter" "${flags[@]}" >"$work/exporter.log" 2>&1 </dev/null &
pid=$!
end=$((SECONDS + 30))
until "${health[@]}" 2>/dev/null; do
  kill -0 "$pid" 2>/dev/null || die "the exporter does not start with the flags of its service"
  [ "$SECONDS" -lt "$end" ] || die "the health check is not content within 30 s"
  sleep 0.2
done
asked() { curl -s -o /dev/null -w '%{http_code}' --max-time 10 -H "Host: $1" "http://127.0.0.1:$port/metrics"; }
for host in "exporter:$port" "127.0.0.1:$port" "localhost:$port"; do
  [ "$(asked "$host")" = 200 ] || die "the exporter refuses $host"
done
for host in "elsewhere:$port" "exporter:1"; do
  [ "$(asked "$host")" = 403 ] || die "the exporter answers to $host"
done
printf 'compose: the exporter serves as its service is asked for\n'
