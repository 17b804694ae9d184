#!/usr/bin/env bash
# A real Prometheus scrapes the running exporter in both formats; what was pushed is asked for in PromQL. Then the whole
# catalogue is live at once, and strict readers of both formats find no fault with it.
# Argument: the exporter's binary. PYTHON names a Python that has prometheus_client.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
exporter="$(realpath "$1")"
number=0
python="${PYTHON:-python3}"
. "$here/../common/stand.sh"

push() {
  local answer
  answer="$(curl -sS --max-time 10 -w ' %{http_code}' -H 'Content-Type: application/json' \
    --data "$1" "http://127.0.0.1:$port/api/v1/events")"
  case "$answer" in *' 202') ;; *) die "push was answered with $answer" ;; esac
}

# Whether a query has exactly this many results.
results() {
  local answer
  answer="$(promtool query instant "http://127.0.0.1:$prometheus_port" "$2")" || return 1
  [ "$(grep -c '=>' <<<"$answer")" = "$1" ]
}

# Whether both targets, the OpenMetrics one and the text one, give one result for a selector with a condition.
both() {
  local job
  for job in openmetrics text; do
    within "$1$2 ($job)" results 1 "${1%%\{*}{job=\"$job\",${1#*\{}$2"
  done
}

mkdir -p "$work/state" "$work/home/.codex/sessions"
for name in edit_ok err_401 subagent compaction; do
  cp "$here/../fixtures/codex/$name.rollout.jsonl" \
    "$work/home/.codex/sessions/rollout-2026-11-29T15-00-00-$(printf '%08d' "$((++number))")-0000-7000-8000-000000000000.jsonl"
done
port="$(free_port)"
env -u CODEX_HOME HOME="$work/home" "$exporter" --home "$work/home" --state-dir "$work/state" \
  --series all --web.listen-address "127.0.0.1:$port" >"$work/exporter.log" 2>&1 </dev/null &
pids+=($!)
within "the exporter is ready" curl -sf --max-time 5 "http://127.0.0.1:$port/-/ready"

python3 "$here/relay.py" "$port" "$work/relay.port" >"$work/relay.log" 2>&1 </dev/null &
pids+=($!)
within "the relay runs" test -s "$work/relay.port"

accept='application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1'
kind="$(curl -sS --max-time 10 -o /dev/null -w '%{content_type}' -H "Accept: $accept" "http://127.0.0.1:$port/metrics")"
case "$kind" in application/openmetrics-text*) ;; *) die "Prometheus would get $kind instead of OpenMetrics" ;; esac

cat >"$work/prometheus.yml" <<YAML
global: { scrape_interval: 1s, scrape_timeout: 1s }
scrape_configs:
  - job_name: openmetrics
    static_configs: [{ targets: ["127.0.0.1:$port"] }]
  - job_name: text
    static_configs: [{ targets: ["127.0.0.1:$(cat "$work/relay.port")"] }]
YAML
promtool check config "$work/prometheus.yml" >/dev/null
prometheus_port="$(free_port)"
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" \
  --web.listen-address="127.0.0.1:$prometheus_port" >"$work/prometheus.log" 2>&1 </dev/null &
pids+=($!)
within "Prometheus is ready" curl -sf --max-time 5 "http://127.0.0.1:$prometheus_port/-/ready"
both 'up{}' ' == 1'
both 'agent_session_exporter_build_info{}' ' == 1'

session='source="e2e",session="first",project="shop"'
event() { printf '{"schemaVersion":"1","id":"%s","source":"e2e","sessionId":"first","projectId":"shop","type":"%s","data":%s}' "$1" "$2" "$3"; }
push "[$(event 1 turn.started '{"trigger":"person"}'),$(event 2 user.action_required '{"actionId":"a","kind":"question"}')]"
both "agent_session_state{$session,state=\"waiting_for_user\"}" ' == 1'
both "agent_session_state{$session,state=\"running\"}" ' == 0'
both "agent_session_state_reason{$session,reason=\"question\"}" ' == 1'
both "agent_session_pending_user_actions{$session}" ' == 1'
both "agent_session_last_activity_timestamp_seconds{$session}" ' > time() - 60'

# The same event again is no second action, and its answer and the turn's end are seen.
push "$(event 2 user.action_required '{"actionId":"a","kind":"question"}')"
push "[$(event 3 user.action_resolved '{"actionId":"a"}'),$(event 4 turn.ended '{"outcome":"completed"}')]"
both "agent_session_state{$session,state=\"completed\"}" ' == 1'
both 'agent_session_turns_total{source="e2e",project="shop",outcome="completed"}' ' == 1'
both 'up{}' ' == 1'

"$python" "$here/everything.py" "http://127.0.0.1:$port" >"$work/everything.ndjson"
taken="$(curl -sS --max-time 10 -H 'Content-Type: application/x-ndjson' --data-binary "@$work/everything.ndjson" \
  "http://127.0.0.1:$port/api/v1/events")"
case "$taken" in *'"rejected":[]'*) ;; *) die "events that the schema itself gives are refused: $taken" ;; esac
within "what was pushed shows" results 2 'agent_session_stop_acknowledged_timestamp_seconds{session="works"}'
curl -sS --max-time 10 "http://127.0.0.1:$port/metrics" >"$work/live.prom"
curl -sS --max-time 10 -H "Accept: $accept" "http://127.0.0.1:$port/metrics" >"$work/live.om"
promtool check metrics <"$work/live.prom" || die "promtool finds fault with the live metrics"
"$python" "$here/openmetrics.py" "$work/live.om"
# Families about sessions and orchestrations are all there; the exporter's own are those of things that went wrong, too.
sed -n 's/^| `\(agent_[^`]*\)`.*/\1/p' "$here/../../METRICS.md" | grep -v '^agent_session_exporter_' | sort >"$work/documented"
sed -n 's/^# TYPE \([^ ]*\) .*/\1/p' "$work/live.prom" | grep -v '^agent_session_exporter_' | sort >"$work/shown"
missing="$(comm -23 "$work/documented" "$work/shown")"
[ -z "$missing" ] || die "not shown although everything was pushed: $missing"
both 'up{}' ' == 1'

kill -TERM "${pids[0]}"
code=0
wait "${pids[0]}" || code=$?
[ "$code" = 0 ] || die "the exporter ended with $code on SIGTERM"
pids=("${pids[@]:1}")
printf 'Prometheus scraped both formats: all queries answered as expected; %d families about sessions and orchestrations, all live\n' \
  "$(wc -l <"$work/documented")"
