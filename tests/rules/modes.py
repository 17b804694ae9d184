#!/usr/bin/env python3
"""Runs the rule tests in the other modes of series and holds the runbook's table of modes against what happens.

For --series=attention each test is played twice side by side, once as it is and once with the series of sessions and
orchestrations left out while they are not in that mode's set; the firing alerts of both are compared step by step. For
--series=off all of these series are left out, and the tests' own expectations hold for the rest. Needs promtool and PyYAML.

Argument: the exporter's binary. With it the set is held against what the real exporter shows in each mode.
"""

import concurrent.futures
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ALERTS = HERE.parent.parent / "alerts"
FILES = ["agent_sessions.yml", "orchestrations.yml", "exporter.yml"]
STEP = 15
# How long the series of a session outlive its being in the set; those of an orchestration do not.
LINGERS = 15 * 60
STALE = object()

# Of what the table calls seen in part, whom it is missed for, by test: the others have to be seen.
PART = {
    "an orchestration that says no more": [("AgentOrchestrationStale", "inmode"), ("AgentOrchestrationStale", "pushed")],
}
OF = "alertname, severity, source, project, session, orchestration, spec"


# === Series ===


def expand(text):
    """Values of promtool's notation, one per step; None where there is none."""
    values = []
    for part in text.split():
        if part == "stale":
            values.append(STALE)
        elif blank := re.fullmatch(r"_(?:x(\d+))?", part):
            values += [None] * int(blank[1] or 1)
        else:
            found = re.fullmatch(r"(-?[\d.]+)(?:([+-][\d.]+))?(?:x(\d+))?", part)
            start, step, times = float(found[1]), float(found[2] or 0), int(found[3] or 0)
            values += [start + step * n for n in range(times + 1)]
    return values


def written(values):
    """The same as promtool reads it, runs put together."""
    out = []
    for value in values:
        word = "_" if value is None else "stale" if value is STALE else f"{value:.17g}"
        if out and out[-1][0] == word and word != "stale":
            out[-1][1] += 1
        else:
            out.append([word, 1])
    return " ".join(word if times == 1 else f"{word}x{times if word == '_' else times - 1}" for word, times in out)


class Series:
    """One series of a test."""

    def __init__(self, given):
        self.name, labels = re.fullmatch(r"([\w:]+)\{(.*)\}", given["series"]).groups()
        self.labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
        self.values = expand(given["values"])

    def at(self, step):
        value = self.values[step] if step < len(self.values) else None
        return None if value is STALE else value

    def owner(self):
        """The session or orchestration that it is about, if it is about one."""
        for label in ("session", "orchestration"):
            if label in self.labels:
                return label, self.labels.get("source"), self.labels[label]
        return None

    def given(self, instance=None, values=None):
        labels = self.labels | ({"instance": instance} if instance else {})
        text = ", ".join(f'{name}="{value}"' for name, value in labels.items())
        return {"series": f"{self.name}{{{text}}}", "values": written(self.values if values is None else values)}


# === The set of --series=attention ===


def needs_attention(found, now):
    """Whether a session is in the set, as the exporter decides it from the facts behind these names, labels and values."""
    found = [(name.removeprefix("agent_session_"), labels, value) for name, labels, value in found]
    states = {labels["state"] for name, labels, value in found if name == "state" and value == 1}
    most = {}
    for name, labels, value in found:
        if name != "subagents" or labels["state"] == "working":
            most[name] = max(value, most.get(name, -math.inf))
    if states & {"waiting_for_user", "stalled", "blocked", "failed", "unknown"} or most.get("stop_pending") == 1:
        return True
    # The window holds no more calls than were made since progress.
    calls = max(most.get("calls_since_progress", 0), most.get("window_calls", 0))
    if calls >= 20 and not states & {"completed", "failed", "cancelled"}:
        return True
    # Series of tests are made by hand and may call running what the exporter calls stalled.
    active = most.get("last_activity_timestamp_seconds")
    silence = now - active if active is not None else 0
    excused = any(most.get(name, 0) > 0 for name in ("in_flight_calls", "background_tasks", "subagents"))
    loops = silence < 900 and (most.get("step_entries_max", 0) >= 4 or most.get("turns_since_progress", 0) >= 20)
    hangs = now - most.get("oldest_in_flight_call_timestamp_seconds", now) >= 7200
    return bool(states & {"running", "progressing"}) and (silence >= 600 and not excused or loops or hangs)


def run_needs_attention(found, _):
    """The same for an orchestration."""
    for name, labels, value in found:
        name = name.removeprefix("agent_orchestration_")
        if name == "state" and value == 1 and labels["state"] in ("failed", "unknown"):
            return True
        if name == "spec_state" and value == 1 and labels["state"] in ("failed", "timeout"):
            return True
        if name == "specs" and value > 0 and labels["status"] in ("failed", "timeout", "skipped"):
            return True
        if name == "stop_requested_timestamp_seconds":
            return True
    return False


SETS = {"session": needs_attention, "orchestration": run_needs_attention}


def attention(owner, series):
    """Values of each series as they are while its owner is in the set, with what a scrape says when they vanish."""
    length, last, seen = max(len(s.values) for s in series), None, []
    for step in range(length):
        found = [(one.name, one.labels, one.at(step)) for one in series if one.at(step) is not None]
        if SETS[owner[0]](found, step * STEP):
            last = step
        lingers = LINGERS if owner[0] == "session" else STEP
        seen.append(last is not None and (step - last) * STEP < lingers)
    for one in series:
        kept, shown = [], False
        for step, value in enumerate(one.values):
            here = seen[step] and value is not None and value is not STALE
            kept.append(value if here else STALE if shown else None)
            shown = here
        yield one, kept


# === Tests ===


def mode_series(mode, instance):
    """What the exporter says of its mode, with and without the job that the tests give."""
    for job in ('job="agents", ', ""):
        name = f'agent_session_exporter_series_mode{{{job}instance="{instance}", mode="{mode}"}}'
        yield {"series": name, "values": "1x1000"}


def seconds(text):
    """A duration in seconds."""
    return sum(int(n) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[u] for n, u in re.findall(r"(\d+)([smhd])", text))


def compared(test, never):
    """A test in both modes at once, as far as its own expectations go: after that its series run out. Each mode is another
    instance, so no rule mixes them."""
    owned = {}
    for one in map(Series, test["input_series"]):
        if one.name == "agent_session_exporter_series_mode":
            continue
        owned.setdefault(one.owner(), []).append(one)
    if not set(owned) - {None}:
        return None
    inputs = [one.given("full") for found in owned.values() for one in found] + [one.given("attention") for one in owned.pop(None, [])]
    for owner, of_it in owned.items():
        inputs += [one.given("attention", kept) for one, kept in attention(owner, of_it)]
    inputs += [*mode_series("full", "full"), *mode_series("attention", "attention")]
    end = max(seconds(case["eval_time"]) for case in test.get("promql_expr_test", []) + test.get("alert_rule_test", []))

    def fires(instance, *left_out):
        names = "|".join(["AgentSessionExporter.*", *left_out])
        return f'ALERTS{{alertstate="firing", instance="{instance}", alertname=~"Agent.*", alertname!~"{names}"}}'

    def ever(alerts):
        return f"count by (alertname, session, orchestration) (count_over_time(({alerts})[{end + STEP}s:{STEP}s]))"

    more = f"{fires('attention')} unless on ({OF}) {fires('full', *never)}"
    less = f"{fires('full', *never)} unless on ({OF}) {fires('attention')}"
    missed = [{"labels": f'{{alertname="{alert}", orchestration="{name}"}}', "value": 1} for alert, name in PART.get(test["name"], [])]
    queries = [{"expr": ever(more), "exp_samples": []}, {"expr": ever(less), "exp_samples": missed}]
    return {
        "name": f"attention: {test['name']}", "interval": test["interval"], "input_series": inputs,
        "promql_expr_test": [{**query, "eval_time": f"{end}s"} for query in queries],
    }


def switched_off(test, lost):
    """A test without series of sessions and orchestrations; what it expects of those is taken out."""
    series = [given for given in test["input_series"] if not Series(given).owner()]
    if len(series) == len(test["input_series"]):
        return None
    test = {**test, "input_series": series + list(mode_series("off", "127.0.0.1:10077"))}
    queries = []
    for query in test.get("promql_expr_test", []):
        samples = []
        for sample in query.get("exp_samples") or []:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"]))
            if not {"session", "orchestration"} & set(labels) and labels.get("alertname") not in lost:
                samples.append(sample)
        queries.append({**query, "exp_samples": samples})
    alerts = [{**case, "exp_alerts": [] if case["alertname"] in lost else case["exp_alerts"]} for case in test.get("alert_rule_test", [])]
    return {**test, "name": f"off: {test['name']}", "promql_expr_test": queries, "alert_rule_test": alerts}


def passes(tests, rules):
    """What promtool says of tests: nothing if they pass."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "test.yml")
        path.write_text(yaml.safe_dump({"rule_files": rules, "evaluation_interval": f"{STEP}s", "tests": tests}))
        done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout + done.stderr


# === The real exporter ===


def exposed(page):
    """Samples by the session or orchestration they are about, ages left out."""
    found = {}
    for name, labels, value in re.findall(r"^(\w+)\{(.*)\} (\S+)$", page, re.M):
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
        for kind in SETS:
            if kind in labels and not name.startswith("agent_session_seconds_since_"):
                found.setdefault((kind, labels["source"], labels[kind]), []).append((name, labels, float(value)))
    return found


def check_exporter(exporter, problems):
    """The same events in each mode: in attention exactly those have series that are in the set by what full shows of them."""
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(HERE), str(HERE.parent / "boards")]
    import answers
    import speed

    now, shown = time.time() * 1000, {}
    told = [speed.session(kind, number, now) for number, kind in enumerate(sorted(speed.KINDS) * 4)]
    events = [event for one in told + [speed.orchestration(0, now), speed.orchestration(1, now, well=True)] for event in one.events]
    for mode in ("full", "attention", "off"):
        with tempfile.TemporaryDirectory() as work:
            address = f"127.0.0.1:{answers.free_port()}"
            command = [exporter, "--home", f"{work}/home", "--state-dir", f"{work}/state", "--web.listen-address", address]
            with answers.started([*command, "--series", mode], pathlib.Path(work, "log")):
                answers.within("the exporter is ready", lambda: answers.fetch(f"http://{address}/-/ready") or True)
                speed.push(f"http://{address}", events)
                shown[mode] = exposed(answers.fetch(f"http://{address}/metrics"))
    expected = {owner: found for owner, found in shown["full"].items() if SETS[owner[0]](found, now / 1000)}
    if expected != shown["attention"]:
        differ = [owner for owner in {*expected, *shown["attention"]} if expected.get(owner) != shown["attention"].get(owner)]
        problems.append(f"the exporter with --series=attention shows others: {differ[:5]}")
    if shown["off"]:
        problems.append(f"the exporter with --series=off shows {list(shown['off'])[:5]}")
    print(f"modes: of {len(shown['full'])} sessions and orchestrations the exporter shows {len(shown['attention'])} in attention")


# === The table ===


def table():
    """The runbook's table: for each alert whether it works in the modes attention and off."""
    text = (ALERTS / "RUNBOOK.md").read_text()
    return {name: (attention, off) for name, attention, off in re.findall(r"^\| (Agent\w+) \| (yes|no|in part) \| (yes|no) \|", text, re.M)}


def main():
    modes, problems = table(), []
    rules = [rule for file in FILES for group in yaml.safe_load((ALERTS / file).read_text())["groups"] for rule in group["rules"]]
    names = {rule["alert"] for rule in rules if "alert" in rule}
    if names != set(modes):
        problems.append(f"the runbook's table of modes and the rules differ in {sorted(names ^ set(modes))}")
    off = {name for name, (_, works) in modes.items() if works == "no"}
    never = [name for name, (works, _) in modes.items() if works == "no"]
    if {name for name, (works, _) in modes.items() if works == "in part"} != {name for part in PART.values() for name, _ in part}:
        problems.append("no test shows what is seen in part")
    jobs = []
    for path in sorted(HERE.glob("*.test.yml")):
        content = yaml.safe_load(path.read_text())
        files = [str((HERE / file).resolve()) for file in content["rule_files"]]
        if any("classic" in file for file in files):
            continue
        for made in ([compared(test, never) for test in content["tests"]], [switched_off(test, off) for test in content["tests"]]):
            if any(made):
                jobs.append((path.name, [test for test in made if test], files))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (where, *_), said in zip(jobs, pool.map(lambda job: passes(*job[1:]), jobs)):
            if said:
                problems.append(f"{where}: {said}")
    if len(sys.argv) > 1:
        check_exporter(sys.argv[1], problems)
    for problem in problems:
        print(f"modes: {problem}", file=sys.stderr)
    print(f"modes: {sum(len(tests) for _, tests, _ in jobs)} tests in attention and off, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
