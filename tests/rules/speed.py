#!/usr/bin/env python3
"""Measures what the shipped rules and boards cost with 1,000 live sessions: a real exporter is fed with them, a real Prometheus
scrapes it and evaluates the rules, and every query of every board is asked for. Times are reported, never judged.

Argument: the exporter's binary. Needs prometheus on the PATH, and PyYAML. Time is how long one evaluation of a group took by
Prometheus' own metric; the least is what the rules cost, the most is what else ran. CPU is what Prometheus takes with the rules
less what it takes without. Range queries get as many steps as Grafana asks for of six hours, over what there is; on the board of
one session that one is chosen, as links to it do.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import tempfile
import time
import urllib.parse

import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE.parent / "boards")]
import answers  # noqa: E402
import check  # noqa: E402
import lint  # noqa: E402

# What the 1,000 do, and how many of each.
KINDS = {
    "works": 525, "delegates": 40, "builds": 80, "reads": 80, "spins": 15, "fails": 15, "asks": 80, "guesses": 20, "limited": 50,
    "retries": 20, "silent": 15, "stuck": 5, "idle": 40, "failed": 5, "stops": 10,
}
ORCHESTRATIONS = 5
# Six hours at 30 s, the least step that a board of usual width asks for.
STEPS = 720
MINUTE = 60_000


class Told:
    """Events of one session, in order."""

    def __init__(self, number, kind, now):
        self.base = {"schemaVersion": "1", "source": f"bot_{number % 4}", "projectId": f"project-{number % 20}", "sessionId": f"{kind}-{number}"}
        self.model = {"model": f"model-{number % 6}", "provider": f"provider-{number % 3}"}
        self.number, self.now, self.count, self.events = number, now, 0, []

    def say(self, ago, what, **data):
        self.count += 1
        told = self.base | {"id": f"e{self.count}", "time": int(self.now - ago), "type": what, "data": data}
        self.events.append(told)

    def call(self, ago, tool="shell", outcome="ok", ends=True, **started):
        call = f"c{self.count}"
        self.say(ago, "tool.started", callId=call, tool=tool, **started)
        if ends:
            self.say(ago - 200, "tool.ended", callId=call, tool=tool, outcome=outcome, **({"error": "no such module"} if outcome == "error" else {}))

    def begin(self, ago, interactive=False):
        self.say(ago, "session.started", agent="bot", agentVersion="1.0", mode="builder", interactive=interactive, **self.model)
        self.say(ago, "turn.started", trigger="person")
        self.use(ago)

    def use(self, ago):
        used = {"input": 900, "cacheRead": 9000, "cacheWrite": 10, "output": 300, "costUsd": 0.01, "contextUsed": 0.4}
        self.say(ago, "usage", responseId=f"r{self.count}", **self.model, **used)

    def work(self, since, until, calls):
        """Different calls, a change after each ten."""
        for n in range(calls):
            ago = since - (since - until) * n / calls
            self.call(ago, "read" if n % 2 else "shell", args={"what": f"{n}"})
            if n % 10 == 9:
                self.say(ago - 300, "progress", kind="file_modified", evidence="vcs", subject=f"f{n}")


def session(kind, number, now):
    """One session that has come to be what its kind says."""
    told = Told(number, kind, now)
    age = (20 + number % 40) * MINUTE
    told.begin({"silent": 30 * MINUTE, "stuck": 190 * MINUTE}.get(kind, age), interactive=kind == "guesses")
    # Honest work first.
    told.work(age - 5000, 10 * MINUTE, 12)
    if kind == "works":
        told.work(5 * MINUTE, 3 * MINUTE, 10 + number % 20)
        told.call(20_000, args={"what": "now"}, ends=False)
    elif kind == "delegates":
        told.call(60_000, "task", ends=False)
        child = Told(number, f"child-of-{kind}", now)
        child.base["parentSessionId"] = told.base["sessionId"]
        child.begin(60_000)
        child.work(50_000, 5_000, 10)
        told.events += child.events
    elif kind == "builds":
        told.say(9 * MINUTE, "plan.updated", pending=3, inProgress=1, completed=2)
        told.say(9 * MINUTE, "criteria.updated", passed=2, pending=2, failed=1)
        told.say(8 * MINUTE, "workflow.step.started", stepId="b", kind="build", name="build")
        told.say(6 * MINUTE, "workflow.step.completed", stepId="b", kind="build", outcome="advanced")
        told.say(6 * MINUTE, "workflow.step.started", stepId="v", kind="verify", name="verify")
        told.say(2 * MINUTE, "verification.failed" if number % 3 else "verification.passed")
        told.call(MINUTE, args={"what": "verify"}, ends=False)
    elif kind == "reads":
        for n in range(32):
            lines = {"start": 1, "end": 90, "total": 100} if number % 4 == 0 else {"start": n * 9 + 1, "end": n * 9 + 9, "total": 300}
            told.call((9 * 60 - n * 15) * 1000, "read", target="a.rs", args={"path": "a.rs", **lines}, readRange=lines)
    elif kind in ("spins", "fails"):
        for n in range(40):
            told.call((9 * 60 - n * 13) * 1000, args={"what": "the same"}, outcome="error" if kind == "fails" else "ok")
    elif kind == "asks":
        told.call(9 * MINUTE, ends=False)
        told.say((1 + number % 9) * MINUTE, "user.action_required", actionId="a", kind=("permission", "question", "plan_approval")[number % 3])
    elif kind == "guesses":
        told.say(9 * MINUTE, "user.action_required", actionId="a", kind="permission", certainty="probable")
    elif kind in ("limited", "retries"):
        reason, ago = "retry" if kind == "retries" else "rate_limit", (1 + number % 9) * MINUTE
        told.say(ago + 1000, "rate_limit.signal", delayMs=500)
        told.say(ago, "session.blocked", reason=reason, attempt=3, until=int(now + 20 * MINUTE))
    elif kind == "stuck":
        told.call(150 * MINUTE, ends=False)
    elif kind == "idle":
        told.say(3 * MINUTE, "turn.ended", outcome="completed")
    elif kind == "failed":
        told.say(3 * MINUTE, "turn.ended", outcome="failed", errorClass="server")
    elif kind == "stops":
        told.say(15 * MINUTE, "stop.requested", requester="cli")
        told.call(1000, args={"what": "goes on"})
    if kind == "silent":
        told.events = [event for event in told.events if event["time"] < now - 15 * MINUTE]
    return told


def orchestration(number, now, well=False):
    """A run of specs, some of which failed unless it goes well."""
    told = Told(number, "run", now)
    told.say(20 * MINUTE, "orchestration.updated", state="running", startedAt=int(now - 20 * MINUTE), batch=1, batches=2)
    for n in range(8):
        told.say(19 * MINUTE, "spec.updated", spec=f"s{n}", status=("running", "completed" if well else "failed", "pending", "completed")[n % 4], batch=1, retryCount=n % 3)
    told.say(MINUTE, "parallel.updated", adaptive=True, max=4, effective=2, floor=1, reason="rate_limit")
    return told


def push(address, events):
    """Sends events in bodies of a few thousand."""
    for start in range(0, len(events), 4000):
        lines = "\n".join(json.dumps(event) for event in events[start : start + 4000]) + "\n"
        answer = json.loads(answers.fetch(f"{address}/api/v1/events", lines.encode()))
        if answer["rejected"]:
            raise SystemExit(f"tests/rules/speed.py: events are refused: {answer['rejected'][:3]}")


def go_on(sessions, number):
    """What the sessions at work do next: a new call, tokens, now and then a change; loops go round once more."""
    now, events = time.time() * 1000, []
    for told in sessions:
        told.now, told.events = now, []
        kind = told.base["sessionId"].split("-")[0]
        if kind in ("works", "builds", "stops"):
            told.call(900, args={"what": f"round {number}"})
            told.use(500)
            if (told.number + number) % 10 == 0:
                told.say(300, "progress", kind="file_modified", evidence="vcs", subject=f"round {number}")
        elif kind in ("spins", "fails"):
            told.call(900, args={"what": "the same"}, outcome="error" if kind == "fails" else "ok")
        elif kind == "retries":
            told.say(100, "session.blocked", reason="retry", attempt=4 + number, until=int(now + MINUTE))
        events += told.events
    return events


# === What is measured ===


def metrics(prometheus, name):
    """Samples of one of Prometheus' own metrics, by labels."""
    page = answers.fetch(f"{prometheus}/metrics")
    rows = (line.rsplit(" ", 1) for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return {labels.removeprefix(name): float(value) for labels, value in rows}


class Evaluations:
    """Durations of groups and rules, one of each evaluation."""

    def __init__(self):
        self.groups, self.rules, self.last = {}, {}, {}

    def look(self, prometheus):
        durations = metrics(prometheus, "prometheus_rule_group_last_duration_seconds")
        for group in json.loads(answers.fetch(f"{prometheus}/api/v1/rules"))["data"]["groups"]:
            name, when = group["name"], group["lastEvaluation"]
            if self.last.get(name) == when or when.startswith("0001"):
                continue
            self.last[name] = when
            took = next(value for labels, value in durations.items() if labels.endswith(f";{name}\"}}"))
            self.groups.setdefault(name, []).append(took)
            for number, rule in enumerate(group["rules"]):
                if rule["health"] == "err":
                    raise SystemExit(f"tests/rules/speed.py: {rule['name']}: {rule['lastError']}")
                self.rules.setdefault((name, number, rule["name"]), []).append(rule["evaluationTime"])

    def forget(self):
        """Begins anew with the next evaluation."""
        self.groups, self.rules = {}, {}

    def whole(self):
        """The whole rule set, once for each evaluation that all groups took part in."""
        return [sum(took) for took in zip(*self.groups.values())]


def samples_read(prometheus):
    """How many samples each rule reads, which no other load on the machine changes."""
    read = {}
    for group in json.loads(answers.fetch(f"{prometheus}/api/v1/rules"))["data"]["groups"]:
        for number, rule in enumerate(group["rules"]):
            asked = urllib.parse.urlencode({"query": rule["query"], "stats": "all"})
            stats = json.loads(answers.fetch(f"{prometheus}/api/v1/query?{asked}"))["data"]["stats"]
            read[group["name"], number, rule["name"]] = stats["samples"]["totalQueryableSamples"]
    return read


def with_rules(folder):
    """The files that are loaded by default."""
    return [str(folder.resolve() / file) for file in lint.RULES if file not in lint.NOT_LOADED]


def cpu(prometheus):
    """Seconds of CPU that Prometheus has taken."""
    return sum(metrics(prometheus, "process_cpu_seconds_total").values())


def table(title, rows):
    """Prints times in milliseconds."""
    print(f"{title:<58}{'least':>8}{'median':>8}{'most':>8}")
    for name, took in ((name, took) for name, took in rows if took):
        least, median, most = (1000 * f(took) for f in (min, statistics.median, max))
        print(f"{name:<58}{least:8.1f}{median:8.1f}{most:8.1f}")


def answer_times(prometheus, where, target, chosen, since, now):
    """How long a query took each time, and how many series it gave; once more only if it was slow."""
    if chosen and where.startswith("session.json"):
        target = target | {"expr": target["expr"].replace("$session", chosen)}
    if "values" in target:
        path, asked = f"label/{target['values']}/values", {"match[]": answers.with_values(target["expr"]), "start": since, "end": now}
    elif target["instant"]:
        path, asked = "query", {"query": answers.with_values(target["expr"]), "time": now}
    else:
        path, asked = "query_range", {"query": answers.with_values(target["expr"]), "start": since, "end": now, "step": (now - since) / STEPS}
    took = []
    while len(took) < 4 and (not took or 0.02 < min(took) < 1):
        began = time.perf_counter()
        answer = answers.fetch(f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(asked)}")
        took.append(time.perf_counter() - began)
    data = json.loads(answer)["data"]
    return took, len(data if isinstance(data, list) else data["result"])


def board_queries():
    """Where each query stands, and the query."""
    known, others = check.families()
    for path in sorted((check.ROOT / "grafana/dashboards").glob("*.json")):
        yield from check.check_board(path.name, json.loads(path.read_text()), known, others, lint.words())


class Stand:
    """The exporter, fed, and Prometheus."""

    def __init__(self, stack, given):
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (work / "home").mkdir()
        port, prometheus_port = answers.free_port(), answers.free_port()
        self.address, self.prometheus = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{prometheus_port}"
        self.config, self.interval, self.target, self.round = work / "prometheus.yml", given.interval, f"127.0.0.1:{port}", 0
        command = [given.exporter, "--home", f"{work}/home", "--state-dir", f"{work}/state", "--web.listen-address", self.target]
        stack.enter_context(answers.started([*command, "--series", given.series], work / "exporter.log"))
        answers.within("the exporter is ready", lambda: answers.fetch(f"{self.address}/-/ready") or True)
        now = time.time() * 1000
        kinds = [kind for kind, count in KINDS.items() for _ in range(count)]
        self.sessions = [session(kind, number, now) for number, kind in enumerate(kinds)]
        events = [event for told in self.sessions for event in told.events]
        push(self.address, events + [event for number in range(ORCHESTRATIONS) for event in orchestration(number, now).events])
        self.configure(with_rules(given.rules))
        command = ["prometheus", f"--config.file={self.config}", f"--storage.tsdb.path={work}/tsdb", "--web.enable-lifecycle"]
        stack.enter_context(answers.started([*command, f"--web.listen-address=127.0.0.1:{prometheus_port}"], work / "prometheus.log"))
        answers.within("Prometheus is ready", lambda: answers.fetch(f"{self.prometheus}/-/ready") or True)
        self.since = time.time()

    def configure(self, rules):
        seconds = f"{self.interval}s"
        times = {"scrape_interval": seconds, "scrape_timeout": seconds, "evaluation_interval": seconds}
        scraped = [{"job_name": "any", "static_configs": [{"targets": [self.target]}]}]
        self.config.write_text(yaml.safe_dump({"global": times, "rule_files": rules, "scrape_configs": scraped}))

    def go_on(self, rounds, look=lambda: None):
        """Lets the sessions work; returns how much CPU Prometheus took for one round."""
        before = cpu(self.prometheus)
        for _ in range(rounds):
            self.round += 1
            push(self.address, go_on(self.sessions, self.round))
            until = time.monotonic() + self.interval
            while time.monotonic() < until:
                time.sleep(min(1, self.interval / 4))
                look()
        return (cpu(self.prometheus) - before) / rounds


def alerts(prometheus):
    """How many there are of each, pending ones as well."""
    asked = urllib.parse.urlencode({"query": "sort_desc(count by (alertname) (ALERTS))"})
    found = json.loads(answers.fetch(f"{prometheus}/api/v1/query?{asked}"))["data"]["result"]
    return [f"{alert['metric']['alertname']} {alert['value'][1]}" for alert in found]


def report_rules(stand, seen, took, open_alerts, read):
    page = answers.fetch(f"{stand.address}/metrics").splitlines()
    samples = sum(line.startswith("agent_") for line in page)
    states = sum(line.startswith("agent_session_state{") and line.endswith(" 1") for line in page)
    print(f"{states} live sessions, {samples} samples a scrape, scraped and evaluated every {stand.interval} s\n")
    table("groups of rules, ms", [(name, times) for name, times in sorted(seen.groups.items())])
    table("", [("the whole rule set", seen.whole())])
    print(f"{'… of CPU':<58}{took * 1000:8.1f}")
    print(f"{'… samples that it reads':<58}{sum(read.values()):8}\n")
    # By what they read: that is the same whatever else the machine does.
    slowest = sorted(seen.rules.items(), key=lambda rule: -read[rule[0]])[:12]
    table("rules that read most, ms", [(f"{rule[2]} ({read[rule]} samples)", times) for rule, times in slowest])
    print(f"\nalerts: {', '.join(open_alerts)}\n")


def report_boards(stand, chosen):
    now, asked = time.time(), []
    for where, target in board_queries():
        took, series = answer_times(stand.prometheus, where, target, chosen, stand.since, now)
        asked.append((f"{where} ({series} series)", took))
    asked.sort(key=lambda row: -min(row[1]))
    table(f"slowest of {len(asked)} queries of the boards, ms", asked[:12])


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("exporter")
    arguments.add_argument("--rules", type=pathlib.Path, default=lint.ALERTS, help="folder of the rules, to compare others")
    arguments.add_argument("--interval", type=int, default=4, help="seconds between scrapes and between evaluations")
    arguments.add_argument("--rounds", type=int, default=3, help="evaluations that are looked at, after the first")
    arguments.add_argument("--series", default="full", help="the exporter's mode")
    arguments.add_argument("--all-chosen", action="store_true", help="the board of one session shows all of them")
    arguments.add_argument("--no-boards", action="store_true", help="rules alone")
    given = arguments.parse_args()
    with contextlib.ExitStack() as stack:
        stand, seen = Stand(stack, given), Evaluations()
        # The first evaluations have nothing to look back on.
        stand.go_on(2)
        asked = urllib.parse.urlencode({"query": "agent_session:active"})
        found = f"{stand.prometheus}/api/v1/query?{asked}"
        answers.within("the sessions are seen", lambda: json.loads(answers.fetch(found))["data"]["result"])
        seen.look(stand.prometheus)
        seen.forget()
        took = stand.go_on(given.rounds, lambda: seen.look(stand.prometheus))
        open_alerts, read = alerts(stand.prometheus), samples_read(stand.prometheus)
        stand.configure([])
        answers.fetch(f"{stand.prometheus}/-/reload", b"")
        took -= stand.go_on(given.rounds)
        report_rules(stand, seen, took, open_alerts, read)
        if not given.no_boards:
            report_boards(stand, "" if given.all_chosen else stand.sessions[0].base["sessionId"])


if __name__ == "__main__":
    main()
