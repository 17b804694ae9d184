#!/usr/bin/env bash
# Who hears of an alert, by the shipped configuration of Alertmanager. Each case: receivers, in order, then labels.
set -euo pipefail
config="$(cd "$(dirname "$0")/../.." && pwd)/alerts/alertmanager.yml"
cases=0

hears() {
  local expected="$1" out
  shift
  if ! out="$(amtool config routes test --config.file="$config" --verify.receivers="$expected" "$@" 2>&1)"; then
    printf 'routes: %s should be heard by %s: %s\n' "$*" "$expected" "$out" >&2
    exit 1
  fi
  cases=$((cases + 1))
}

session='source=codex project=shop session=s1 instance=127.0.0.1:10077'
# shellcheck disable=SC2086  # The labels of a session are several words.
{
  hears watchdog alertname=AgentSessionExporterWatchdog severity=none category=exporter
  hears pager,chat-and-desktop alertname=AgentSessionExporterDown severity=critical category=exporter
  hears pager,chat-and-desktop alertname=AgentSessionExporterSourceDown severity=critical category=exporter
  hears pager,chat-and-desktop-once alertname=AgentSessionAuthFailed severity=critical category=event $session
  # These page after half an hour: the route's wait, not the receiver, says so.
  for category in stuck waiting blocked lost stop; do
    hears pager,chat-and-desktop alertname=AgentSessionAny severity=warning "category=$category" $session
  done
  hears chat-and-desktop alertname=AgentSessionRateLimited severity=warning category=limits source=codex model=m
  hears chat-and-desktop alertname=AgentSessionModelStallRatio severity=warning category=model model=m
  hears chat-and-desktop alertname=AgentSessionExporterSourceDown severity=warning category=exporter source=codex
  # Events are told once and page nobody.
  hears chat-and-desktop-once alertname=AgentSessionFailed severity=warning category=event $session
  hears chat-and-desktop-once alertname=AgentOrchestrationSpecFailed severity=warning category=event spec=login
  for category in stuck waiting event limits exporter; do
    hears digest alertname=AgentSessionAny severity=info "category=$category" $session
  done
  # What is none of ours is not lost.
  hears chat alertname=DiskFull
}

# The wait before a warning pages, and that it is the only one of its length.
if [ "$(grep -c 'group_wait: 30m' "$config")" != 1 ] ||
  ! grep -A3 'severity="warning".*stuck|waiting|blocked|lost|stop' "$config" | grep -q 'group_wait: 30m'; then
  printf 'routes: warnings of sessions should page after 30 minutes\n' >&2
  exit 1
fi
printf 'routes: %d cases lead where they should\n' "$cases"
