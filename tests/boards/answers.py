"""Asks a real Prometheus every query of every panel, as Grafana would.

It holds two things. The past is `replay` of recorded files (history.py), and nothing else: there every query about sessions,
fleets and orchestrations has to be answered, at a moment and over hours that lie before this test. The present is a scrape
of an exporter that runs, for what no recording can tell: see LIVE.
"""

import contextlib
import http.server
import json
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

import feed
import history
import lint

# What replay does not make, by why. A panel that asks for any of it is looked at in the present, with all of its queries.
LIVE = {
    "whether a target answers is known to who scrapes it": ["up"],
    "alerts are evaluated as time goes by; tests of the rules look at the past": ["ALERTS", "ALERTS_FOR_STATE"],
    "the process that runs": [
        "agent_session_exporter_build_info", "process_start_time_seconds", "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        *(f"agent_session_exporter_{name}" for name in (
            "ingest_lag_seconds", "last_scan_timestamp_seconds", "otlp_items_total", "otlp_spool_items", "queue_length", "source_info", "source_up",
            "source_last_record_timestamp_seconds", "store_bytes", "store_commits_total", "store_commit_failures_total",
            "store_commit_seconds", "watched_roots",
        )),
    ],
    "what it met while it read": [
        f"agent_session_exporter_{name}_total" for name in (
            "clock_skew_records", "decode_errors", "push_refused", "records", "source_reconnects", "state_disagreements",
            "unknown_records", "sessions_evicted",
        )
    ],
}
# The only panels beside the exporter's own board that may be looked at in the present.
LIVE_PANELS = {
    "needs-you.json: Open alerts", "needs-you.json: Exporters", "session.json: Open alerts", "orchestration.json: Open alerts",
}
# What a lasting connection to an agent's server would have to lose or to contradict: a page stands for it, with the labels
# that METRICS.md gives.
NEEDS_SERVER = ["agent_session_exporter_source_reconnects_total", "agent_session_exporter_state_disagreements_total"]
# May stay 0: nothing that is pushed makes a commit fail.
MAY_REST = ["agent_session_exporter_store_commit_failures_total"]
ROUNDS = 3
# As Grafana sets them: four times between scrapes, and the time that is shown.
VARIABLES = {"$__rate_interval": "1m", "$__range": f"{history.SPAN}s"}


class When:
    """A range that boards are looked at over, in seconds."""

    def __init__(self, end, span, step, range_name):
        self.end, self.start, self.step = end, end - span, step
        self.variables = VARIABLES | {"$__range": range_name}


def past():
    return When(history.AT / 1000, history.SPAN, 30, f"{history.SPAN}s")


def present():
    return When(time.time(), 30, 5, "5m")


def with_values(expr, variables=VARIABLES):
    """A query as Grafana sends it with everything chosen."""
    for name, value in variables.items():
        expr = expr.replace(name, value)
    return re.sub(r"\$\w+", ".*", expr)


def is_live(expr):
    """Whether a query asks for what replay does not make."""
    names = "|".join(re.escape(name) for names in LIVE.values() for name in names)
    return bool(re.search(rf"(?<![\w:])({names})(_bucket)?(?![\w:])", expr))


def divided(queries):
    """Queries of the past and of the present, those of a panel together."""
    live = {where for where, target in queries if is_live(target["expr"])}
    beside = {where for where in live if not where.startswith("exporter.json")}
    if beside != LIVE_PANELS:
        lint.fail("boards", f"what is looked at in the present is not what is named: {sorted(beside ^ LIVE_PANELS)}")
    return [q for q in queries if q[0] not in live], [q for q in queries if q[0] in live]


# === Servers ===


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def fetch(url, data=None, kind="application/x-ndjson"):
    request = urllib.request.Request(url, data=data, headers={"Content-Type": kind} if data else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def within(what, test, limit=60):
    """Tries until something holds; mistakes of a server that starts are no failure."""
    end = time.monotonic() + limit
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if test():
                return
        if time.monotonic() > end:
            raise SystemExit(f"tests/boards: not within {limit} s: {what}")
        time.sleep(0.2)


@contextlib.contextmanager
def started(command, log, **env):
    """A server, ended at the end."""
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=os.environ | env)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def exporter_of(binary, work, collector):
    """An exporter of a home with one rollout that sends to a collector, its address."""
    sessions = work / "home/.codex/sessions"
    sessions.mkdir(parents=True)
    (work / "state").mkdir()
    name = "rollout-2026-11-29T15-00-00-00000001-0000-7000-8000-000000000000.jsonl"
    shutil.copy(history.FIXTURES / "codex/edit_ok.rollout.jsonl", sessions / name)
    port = free_port()
    command = [binary, "--home", str(work / "home"), "--state-dir", str(work / "state"), "--web.listen-address", f"127.0.0.1:{port}"]
    command += ["--max-sessions", "60", "--max-tracked", "60", "--history.max-age", "10000d"]
    with started(command, work / "exporter.log", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{collector}"):
        address = f"http://127.0.0.1:{port}"
        within("the exporter is ready", lambda: fetch(f"{address}/-/ready") or True)
        yield address


@contextlib.contextmanager
def prometheus_of(work, targets):
    """A Prometheus of the data that was loaded, which scrapes some targets by the shipped rules; its address."""
    port = free_port()
    files = [str(lint.ALERTS / file) for file in lint.RULES if file not in lint.NOT_LOADED]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": files,
        "scrape_configs": [{"job_name": "any", "static_configs": [{"targets": targets}]}],
    }
    (work / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={work}/prometheus.yml", f"--storage.tsdb.path={work}/tsdb"]
    # Of what is older than the retention time, which is two weeks by default, nothing would be left.
    command += ["--storage.tsdb.retention.time=10y", f"--web.listen-address=127.0.0.1:{port}"]
    with started(command, work / "prometheus.log"):
        address = f"http://127.0.0.1:{port}"
        within("Prometheus is ready", lambda: fetch(f"{address}/-/ready") or True)
        yield address


@contextlib.contextmanager
def page_of(known):
    """Serves the families that a lost connection would show, one more at every scrape; takes what is sent by OTLP."""
    count = iter(range(1, 1_000_000))

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            n = next(count)
            labels = {name: ",".join(f'{label}="x"' for label in sorted(known[name][1])) for name in NEEDS_SERVER}
            lines = [f"{name}{{{labels[name]}}} {n}" for name in NEEDS_SERVER]
            body = ("\n".join(lines) + "\n").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def push_round(address, home, number):
    """Everything once more, with what is wrong in it."""
    lines = "\n".join(json.dumps(event) for event in feed.feed(address, number)) + "\n"
    answer = json.loads(fetch(f"{address}/api/v1/events", lines.encode()))
    if answer["rejected"]:
        raise SystemExit(f"tests/boards: events are refused: {answer['rejected'][:3]}")
    with contextlib.suppress(urllib.error.HTTPError):
        fetch(f"{address}/api/v1/events", b'{"schemaVersion":"1"}', "application/json")
    for path in home.rglob("*.jsonl"):
        with open(path, "a") as file:
            file.write('{"timestamp":\n')


# === Questions ===


def query(prometheus, path, asked):
    return json.loads(fetch(f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(asked)}"))["data"]


def ask(prometheus, target, when):
    """Values that a query returns; of variables the labels'."""
    over = {"start": when.start, "end": when.end}
    if "values" in target:
        return query(prometheus, f"label/{target['values']}/values", {"match[]": with_values(target["expr"])} | over)
    # What stands in for nothing must not pass for something.
    asked = {"query": with_values(target["expr"], when.variables).removesuffix(" or vector(0)")}
    if target["instant"]:
        values = [float(r["value"][1]) for r in query(prometheus, "query", asked | {"time": when.end})["result"]]
    else:
        results = query(prometheus, "query_range", asked | over | {"step": when.step})["result"]
        values = [float(v) for r in results for _, v in r["values"]]
    values = [v for v in values if not math.isnan(v)]
    if re.search(r"\b(rate|increase)\(", target["expr"]) and not any(name in target["expr"] for name in MAY_REST):
        return [v for v in values if v > 0]
    return values


def ask_all(prometheus, queries, when, limit=0):
    """Asks everything, what returns nothing again until the time is over; returns the longest time one took."""
    slowest, missing = (0, ""), list(queries)
    end = time.monotonic() + limit
    while missing:
        still = []
        for where, target in missing:
            began = time.monotonic()
            try:
                found = ask(prometheus, target, when())
            except urllib.error.HTTPError as error:
                lint.fail(where, f"{json.loads(error.read())['error']}: {target['expr']}")
                continue
            slowest = max(slowest, (time.monotonic() - began, where))
            if not found:
                still.append((where, target))
        missing = still
        if time.monotonic() > end:
            break
        time.sleep(1 if missing else 0)
    for where, target in missing:
        lint.fail(where, f"returns nothing: {with_values(target['expr'])}")
    return slowest


def check_rows(prometheus, where, panel, at):
    """A table of several queries has one row for each thing: Grafana puts rows together by the labels that all have."""
    frames = []
    for target in panel["targets"]:
        answer = query(prometheus, "query", {"query": with_values(target["expr"]), "time": at})
        frames.append([r["metric"] for r in answer["result"]])
    shared = set.intersection(*(set().union(*rows) for rows in frames))
    for target, rows in zip(panel["targets"], frames):
        keys = [tuple(row.get(label, "") for label in sorted(shared)) for row in rows]
        if len(keys) != len(set(keys)):
            lint.fail(where, f"query {target['refId']} has several rows for one {sorted(shared)}")


def check_history(prometheus, when):
    """The past holds every source, the months before as well, and nothing that was scraped."""
    seen = {"match[]": "{__name__=~'agent_(session|orchestration)_state'}", "start": when.start, "end": when.end}
    sources = set(query(prometheus, "label/source/values", seen))
    if history.SOURCES - sources:
        lint.fail("history", f"has nothing of {sorted(history.SOURCES - sources)}")
    elder = query(prometheus, "query", {"query": "count(last_over_time(agent_session_info[400d]) == 1)", "time": when.start - 86400})
    if not elder["result"]:
        lint.fail("history", "has nothing of the months before")
    instances = query(prometheus, "label/instance/values", {"start": when.start, "end": when.end})
    if instances != ["history"]:
        lint.fail("history", f"was scraped of {instances}")


def check_answers(binary, tables, queries, known):
    """Every query returns something; returns how many were asked in the present, and the longest time one took.
    `tables`: panels with where they are."""
    then, now = divided(queries)
    with contextlib.ExitStack() as stack:
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if time.time() < past().end + 3600:
            raise SystemExit("tests/boards: the clock of this machine is before the recordings")
        page = stack.enter_context(page_of(known))
        address = stack.enter_context(exporter_of(binary, work, page))
        history.load(binary, address, work)
        prometheus = stack.enter_context(prometheus_of(work, [address.removeprefix("http://"), page]))
        check_history(prometheus, past())
        for number in range(ROUNDS):
            push_round(address, work / "home", number)
            # Two scrapes at least see the round before the next one comes; meanwhile the past is looked at.
            resume = time.monotonic() + 4
            if number == 0:
                slowest = ask_all(prometheus, then, past)
            time.sleep(max(0, resume - time.monotonic()))
        slowest = max(slowest, ask_all(prometheus, now, present, 45))
        live = {where for where, _ in now}
        for where, panel in tables if not lint.problems else []:
            check_rows(prometheus, where, panel, present().end if where in live else past().end)
        if lint.problems:
            for log in work.glob("*.log"):
                print(f"--- {log.name}", "".join(log.read_text().splitlines(keepends=True)[-10:]), sep="\n")
        return len(now), slowest
