#!/usr/bin/env python3
"""Lint of alerts/: what promtool does not know.

Names and labels exist, counters are read as rates, `for` and severity are as agreed, numbers equal the defaults of the
derived states, every alert can be looked up and has tests, and what a message names is on the alert. Needs PyYAML.
"""

import json
import pathlib
import re
import sys

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ALERTS = ROOT / "alerts"
RULES = ["agent_sessions.yml", "orchestrations.yml", "exporter.yml", "classic.yml"]
NOT_LOADED = {"classic.yml"}

SEVERITIES = {"info", "warning", "critical", "none"}
CATEGORIES = {"stuck", "waiting", "blocked", "event", "lost", "limits", "stop", "model", "exporter"}
ANNOTATIONS = {"summary", "description", "runbook_url", "dashboard_url"}
BOARDS = {"agent-session", "agent-session-fleet", "agent-session-orchestration", "agent-session-exporter"}
# How long alerts about the exporter are kept: those that a restart of it would end, and of whose end somebody hears.
KEPT = {"AgentSessionExporterSourceDown": "3m", "AgentSessionExporterOverlap": "3m", "AgentSessionExporterDown": "6m"}
# What an alert may be known by; everything else changes while a problem lasts. Of an eviction the reason is always limit.
IDENTITY = {
    "alertname", "severity", "category", "job", "instance", "source", "project", "session", "orchestration", "spec",
    "model", "provider", "endpoint", "store",
}
MORE_IDENTITY = {
    "AgentSessionExporterEvicting": {"reason"},
    "AgentSessionExporterSpansDropped": {"signal", "result"},
}

# Alert: how long it waits, severity, category. Twice for those of two severities.
TABLE = """
AgentSessionSpinning 2m warning stuck
AgentSessionRepeatingError 2m warning stuck
AgentSessionSlowLoop 10m warning stuck
AgentSessionStepLoop 2m warning stuck
AgentSessionReadsInCircles 2m info stuck
AgentSessionNoProgress 2m info stuck
AgentSessionSilent 2m warning stuck
AgentSessionCallStuck 2m warning stuck
AgentSessionWaitingForUser 0 info waiting
AgentSessionWaitingForUser 0 warning waiting
AgentSessionBlocked 0 warning blocked
AgentSessionFailed 0 warning event
AgentSessionGone 0 warning event
AgentSessionAuthFailed 0 critical event
AgentSessionLost 10m warning lost
AgentSessionVerificationFailed 0 info event
AgentSessionNativeStuck 0 info event
AgentSessionStopNotHonoured 0 warning stop
AgentSessionRateLimited 15m warning limits
AgentSessionModelStallRatio 15m warning model
AgentOrchestrationFailed 0 warning event
AgentOrchestrationSpecFailed 0 warning event
AgentOrchestrationSpecsBlockedByDependency 0 warning blocked
AgentOrchestrationThrottled 10m info limits
AgentOrchestrationLaunchBudgetExhausted 5m warning limits
AgentOrchestrationSpecRetryStorm 0 warning stuck
AgentOrchestrationStale 1m warning lost
AgentOrchestrationStopNotHonoured 0 warning stop
AgentSessionExporterDown 1m critical exporter
AgentSessionExporterGone 5m critical exporter
AgentSessionExporterSourceDown 5m warning exporter
AgentSessionExporterSourceDown 5m critical exporter
AgentSessionExporterOverlap 5m warning exporter
AgentSessionExporterEvicting 0 warning exporter
AgentSessionExporterSpansDropped 0 warning exporter
AgentSessionExporterDecodeErrors 0 warning exporter
AgentSessionExporterUnknownRecordsRising 30m info exporter
AgentSessionExporterWatcherDegraded 15m info exporter
AgentSessionExporterWatchdog 0 none exporter
AgentSessionClassicNoProgress 0 info stuck
AgentSessionClassicLowValue 0 info stuck
AgentSessionClassicRepeats 0 info stuck
AgentSessionClassicOneTarget 0 info stuck
"""

# Rule, the number in it (one group), the key of [thresholds] that says the same, and how many of it make one of ours.
THRESHOLDS = [
    ("AgentSessionSpinning", r"no_new_ratio >= ([\d.]+)", "spinning_percent", 100),
    ("AgentSessionSpinning", r"window_calls >= (\d+)", "spinning_window", 1),
    ("AgentSessionSpinning", r"calls_since_progress >= (\d+)", "loop_calls", 1),
    ("AgentSessionRepeatingError", r"error_streak >= (\d+)", "repeating_errors", 1),
    ("AgentSessionRepeatingError", r"calls_since_progress >= (\d+)", "loop_calls", 1),
    ("AgentSessionSlowLoop", r"repeated_call_max >= (\d+)", "slow_loop_repeats", 1),
    ("AgentSessionSlowLoop", r"calls_since_progress >= (\d+)", "loop_calls", 1),
    ("AgentSessionStepLoop", r"step_entries_max >= (\d+)", "step_entries", 1),
    ("AgentSessionStepLoop", r"turns_since_progress >= (\d+)", "no_progress_turns", 1),
    ("AgentSessionNoProgress", r"seconds_since_progress > (\d+)", "no_progress_seconds", 1),
    ("AgentSessionNoProgress", r"last_prompt_timestamp_seconds <= (\d+)", "no_progress_seconds", 1),
    ("AgentSessionNoProgress", r"calls_since_progress >= (\d+)", "no_progress_calls", 1),
    ("AgentSessionNoProgress", r"turns_since_progress >= (\d+)", "no_progress_turns", 1),
    ("AgentSessionSilent", r"last_activity_timestamp_seconds > (\d+)", "silent_seconds", 1),
    ("AgentSessionCallStuck", r"oldest_in_flight_call_timestamp_seconds > (\d+)", "call_stuck_seconds", 1),
    ("agent_session:active", r"last_activity_timestamp_seconds < (\d+)", "active_seconds", 1),
]

PROMQL = set("and or unless by without on ignoring offset sum min max count".split())
# Labels whose words the program itself chooses; a detector or layer is an agent's own word.
CLOSED = {"state", "reason", "status", "certainty", "capability", "outcome", "mode", "high_value"}

problems = []


def fail(where, what):
    problems.append(f"{where}: {what}")


def seconds(text):
    """A duration in seconds."""
    return sum(int(n) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[u] for n, u in re.findall(r"(\d+)([smhd])", str(text)))


def families():
    """Kind and labels of every family, by name."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", (ROOT / "METRICS.md").read_text(), re.M)
    found = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    # Prometheus' own.
    found["up"] = ("gauge", set())
    return found


def anchors(text):
    """Anchors of the headings of a Markdown file."""
    slug = lambda title: re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    return {slug(title) for title in re.findall(r"^#+ (.*)$", text, re.M)}


def words():
    """Every quoted word of the source, which the values of closed labels are among."""
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.rs"))
    return set(re.findall(r'"(\w+)"', text))


def check_selector(where, name, matchers, known, vocabulary):
    """Labels of a selector exist, and so do the words it asks for. Labels of a recorded rule are left to the tests."""
    for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"', matchers):
        if name in known and label not in known[name][1] | {"job", "instance"}:
            fail(where, f"{name} has no label {label}")
        for word in value.split("|") if "~" in operator else [value]:
            if label in CLOSED and word not in vocabulary:
                fail(where, f'nothing in src/ says "{word}", which {name} is asked for')


def check_expression(where, expr, known, recorded, vocabulary):
    """Names, labels, counters and gauges of an expression."""
    for name, matchers in re.findall(r"(?<![\w:])([a-zA-Z_:][\w:]*)\{([^}]*)\}", expr):
        if name in known or name in recorded:
            check_selector(where, name, matchers, known, vocabulary)
        else:
            fail(where, f"{name} is no family")
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expr)
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", r"\1 ", bare)
    bare = re.sub(r"\{[^}]*\}", "", bare)
    for match in re.finditer(r"(?<![\w:.])[a-zA-Z_:][\w:]*", bare):
        name, before, after = match.group(), bare[: match.start()].rstrip(), bare[match.end() :].lstrip()
        if after.startswith("(") or name in PROMQL or name in recorded:
            continue
        if name not in known:
            fail(where, f"{name} is no family")
            continue
        kind = known[name][0]
        rated = re.search(r"\b(rate|increase)\($", before) and after.startswith("[")
        # What a counter was some time ago tells whether it existed; that is no reading of its value.
        existence = re.search(rf"\b{name}\s+offset\b", bare)
        if kind == "counter" and not rated and not existence:
            fail(where, f"the counter {name} is not under rate() or increase()")
        if kind != "counter" and rated:
            fail(where, f"{name} is a {kind}: rate() and increase() are for counters")
    if "agent_session_info" in expr:
        fail(where, "joins on agent_session_info")


def check_alert(where, rule, known, vocabulary, titles):
    """What every alert has."""
    labels, notes, name = rule.get("labels", {}), rule.get("annotations", {}), rule["alert"]
    row = f"{name} {rule.get('for', 0)} {labels.get('severity')} {labels.get('category')}"
    if row not in TABLE.split("\n"):
        fail(where, f"not as agreed: {row}")
    if set(labels) != {"severity", "category"}:
        fail(where, f"labels are {sorted(labels)}")
    if labels.get("severity") not in SEVERITIES or labels.get("category") not in CATEGORIES:
        fail(where, f"severity or category is no word of ours: {labels}")
    if not ANNOTATIONS <= set(notes):
        fail(where, f"lacks {sorted(ANNOTATIONS - set(notes))}")
    link = re.fullmatch(r"RUNBOOK\.md#([\w-]+)", notes.get("runbook_url", ""))
    if not link or link[1] not in titles:
        fail(where, f"its entry of the runbook does not exist: {notes.get('runbook_url')}")
    elif link[1] != name.lower() and "Classic" not in name:
        fail(where, "its link leads to the entry of another alert")
    board = re.match(r"/d/([\w-]+)", notes.get("dashboard_url", ""))
    if not board or board[1] not in BOARDS:
        fail(where, f"leads to no board: {notes.get('dashboard_url')}")
    own = name.startswith(("AgentSessionExporter", "AgentSessionClassic"))
    kept = KEPT.get(name) if own else "3m"
    if rule.get("keep_firing_for") != kept:
        fail(where, f"keep_firing_for is not {kept}")
    for key, text in notes.items():
        if key.endswith("dashboard_url") and len(re.findall(r"\$labels", text)) != len(re.findall(r"\| urlquery", text)):
            fail(where, f"a label is not escaped in {key}")
        for metric, matchers, rest in re.findall(r'printf "(\w+)\{([^}]*)\}"(.*?)\{\{ (?:else|end)', text, re.S):
            asked = set(re.findall(r'label "(\w+)"', rest))
            if metric not in known:
                fail(where, f"{metric}, which {key} asks for, is no family")
                continue
            own = set() if metric.startswith("agent_orchestration_") else {"source", "project", "session"}
            lacking = (asked | set(re.findall(r"(\w+)=%q", matchers))) - known[metric][1] - own - {"instance"}
            if lacking:
                fail(where, f"{metric} has no {sorted(lacking)}, which {key} asks for")
            if len(re.findall("%q", matchers)) != len(re.findall(r"\$labels\.\w+", rest.split("| query")[0])):
                fail(where, f"{key} has not as many values as places for them")


def check_tests(alerts):
    """Every alert is expected and its text is tested; what a message names is on the alert."""
    expected, shown = set(), {}
    for path in sorted(HERE.glob("*.test.yml")):
        for test in yaml.safe_load(path.read_text())["tests"] or fail(path.name, "has no tests") or []:
            for query in test.get("promql_expr_test", []):
                for sample in query.get("exp_samples") or []:
                    labels = dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"]))
                    expected.add((labels.get("alertname"), labels.get("severity")))
            for case in test.get("alert_rule_test", []):
                for alert in case.get("exp_alerts") or []:
                    key = (case["alertname"], alert["exp_labels"]["severity"])
                    shown.setdefault(key, []).append(set(alert["exp_labels"]))
    for rule in alerts:
        name, severity = rule["alert"], rule["labels"]["severity"]
        if (name, severity) not in expected and name != "AgentSessionExporterWatchdog":
            fail(name, f"no test expects it to fire as {severity}")
        texts = shown.get((name, severity)) or [t for (n, _), found in shown.items() if n == name for t in found]
        if not texts:
            fail(name, "no test shows its text")
        for labels in texts:
            named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
            if named - labels:
                fail(name, f"its message names {sorted(named - labels)}, which the alert does not have")
            if labels - IDENTITY - MORE_IDENTITY.get(name, set()):
                fail(name, f"is known by {sorted(labels - IDENTITY)}, which changes")


def check_thresholds(rules):
    """Numbers of the rules equal the defaults of the derived states."""
    text = (ROOT / "agent-session-exporter.example.toml").read_text()
    section = text.split("[thresholds]")[1].split("\n[")[0]
    defaults = {key: int(value) for key, value in re.findall(r"^#?(\w+) = (\d+)$", section, re.M)}
    for name, pattern, key, factor in THRESHOLDS:
        found = re.findall(pattern, rules[name])
        if not found:
            fail(name, f"has no number like {pattern}")
        for number in found:
            if round(float(number) * factor, 6) != defaults[key]:
                fail(name, f"says {number} where the default of thresholds.{key} is {defaults[key]}")
    # Numbers of rules that are about loops stand in the list above, all of them.
    for name in {name for name, *_ in THRESHOLDS}:
        compared = len(re.findall(r"(?:[<>]=?) [\d.]+", rules[name])) - len(re.findall(r"> 0\b", rules[name]))
        listed = sum(len(re.findall(p, rules[name])) for n, p, *_ in THRESHOLDS if n == name)
        if compared != listed:
            fail(name, f"compares with {compared} numbers, of which {listed} are compared with the defaults")


def check_sets(rules, groups):
    """A recorded set stands before its readers in their group, and holds what each of them asks for."""
    for group in groups:
        recorded = []
        for rule in group["rules"]:
            name = rule.get("alert") or rule["record"]
            for read in re.findall(r"\bagent_session:[\w:]+", rule["expr"]):
                if read not in recorded:
                    fail(name, f"reads {read}, which its group does not record before it")
            if "record" in rule:
                recorded.append(rule["record"])
    for record, expr in rules.items():
        least = re.match(r"\w+ >= ([\d.]+) and ", expr)
        for name, other in rules.items():
            for asked in re.findall(rf"\b{record} >= ([\d.]+)", other) if least else []:
                if float(asked) < float(least[1]):
                    fail(name, f"asks for {record} from {asked} on, which holds only those from {least[1]} on")


def main():
    known = families()
    vocabulary = words()
    groups = {file: yaml.safe_load((ALERTS / file).read_text())["groups"] for file in RULES}
    rules = [rule for file in RULES for group in groups[file] for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    runbook = (ALERTS / "RUNBOOK.md").read_text()
    titles = anchors(runbook)
    for rule in rules:
        check_expression(rule.get("alert") or rule["record"], rule["expr"], known, recorded, vocabulary)
    alerts = [rule for rule in rules if "alert" in rule]
    for rule in alerts:
        check_alert(rule["alert"], rule, known, vocabulary, titles)
    for row in filter(None, TABLE.split("\n")):
        name, _, severity, _ = row.split()
        if (name, severity) not in {(a["alert"], a["labels"]["severity"]) for a in alerts}:
            fail(name, f"is agreed as {severity} and does not exist")
    for name in re.findall(r"^### (Agent\w+)$", runbook, re.M):
        if name not in {a["alert"] for a in alerts}:
            fail("RUNBOOK.md", f"{name} is no alert")
    for label in ("severity", "category"):
        for family, (_, labels) in known.items():
            if label in labels:
                fail(family, f"has the label {label}, which is that of alerts")
    shipped = {json.loads(path.read_text())["uid"] for path in (ROOT / "grafana/dashboards").glob("*.json")}
    if shipped and BOARDS - shipped:
        fail("grafana", f"alerts lead to {sorted(BOARDS - shipped)}, which is no board")
    by_name = {}
    for rule in rules:
        name = rule.get("alert") or rule["record"]
        by_name[name] = by_name.get(name, "") + rule["expr"]
    check_thresholds(by_name)
    check_sets(by_name, [group for found in groups.values() for group in found])
    check_tests(alerts)
    down = next(a for a in alerts if a["alert"] == "AgentSessionExporterDown")
    if seconds(down["for"]) >= 180:
        fail("AgentSessionExporterDown", "waits longer than session alerts are kept")
    interval = yaml.safe_load((ALERTS / "alertmanager.yml").read_text())["route"]["group_interval"]
    if seconds(down["keep_firing_for"]) < seconds(interval) + 60:
        fail("AgentSessionExporterDown", "is over before Alertmanager has dropped what ran out meanwhile")
    loaded = yaml.safe_load((ALERTS / "prometheus.yml").read_text())["rule_files"]
    if loaded != [file for file in RULES if file not in NOT_LOADED]:
        fail("prometheus.yml", f"loads {loaded}")
    for problem in problems:
        print(f"lint: {problem}", file=sys.stderr)
    print(f"lint: {len(rules)} rules, {len(alerts)} alerts, {len(THRESHOLDS)} thresholds, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
