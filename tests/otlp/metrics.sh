#!/usr/bin/env bash
# The running exporter sends its metrics by OTLP to a real backend that answers PromQL, once with names as they are sent and
# once with names as they are made for Prometheus. What each answers is compared with /metrics of the
# same moment, series by series; then a session is deleted, and its series have to end.
# Arguments: the exporter's binary, VictoriaMetrics.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
exporter="$(realpath "$1")"
victoria="$2"
backends=()
. "$here/../common/stand.sh"

# Names as they are sent, and names as it makes them for Prometheus.
for naming in false true; do
  port="$(free_port)"
  "$victoria" -httpListenAddr="127.0.0.1:$port" -storageDataPath="$work/victoria-$naming" -search.latencyOffset=0s \
    -memory.allowedBytes=256MB -opentelemetry.usePrometheusNaming="$naming" >"$work/victoria-$naming.log" 2>&1 </dev/null &
  pids+=($!)
  within "VictoriaMetrics is ready" curl -sf --max-time 5 "http://127.0.0.1:$port/health"
  backends+=("VictoriaMetrics,usePrometheusNaming=$naming http://127.0.0.1:$port /opentelemetry/v1/metrics")
done
printf '%s\n' "${backends[@]}" >"$work/backends"

python3 "$here/fan.py" "$work/backends" "$work/fan.port" >"$work/fan.log" 2>&1 </dev/null &
pids+=($!)
within "requests are passed on" test -s "$work/fan.port"

mkdir -p "$work/state" "$work/home"
port="$(free_port)"
env -i HOME="$work/home" PATH="$PATH" OTEL_METRIC_EXPORT_INTERVAL=1000 OTEL_RESOURCE_ATTRIBUTES=host.name=here \
  OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="http://127.0.0.1:$(cat "$work/fan.port")/v1/metrics" \
  "$exporter" --home "$work/home" --state-dir "$work/state" --series all --web.listen-address "127.0.0.1:$port" \
  >"$work/exporter.log" 2>&1 </dev/null &
pids+=($!)
within "the exporter is ready" curl -sf --max-time 5 "http://127.0.0.1:$port/-/ready"
python3 "$here/../e2e/everything.py" "http://127.0.0.1:$port" >"$work/everything.ndjson"
curl -sSf --max-time 10 -o "$work/taken" -H 'Content-Type: application/x-ndjson' \
  --data-binary "@$work/everything.ndjson" "http://127.0.0.1:$port/api/v1/events"

python3 "$here/compare.py" "http://127.0.0.1:$port" "$work/backends"

curl -sSf --max-time 10 -o "$work/taken" -H 'Content-Type: application/json' "http://127.0.0.1:$port/api/v1/events" --data \
  '{"schemaVersion":"1","id":"gone","source":"everything","sessionId":"works","projectId":"shop","type":"session.deleted","data":{}}'
python3 "$here/compare.py" "http://127.0.0.1:$port" "$work/backends" works
