"""The running exporter, rotel, and signal 9 for either, while files grow and events are pushed: what arrives is what arrives
from an exporter that nothing happened to.

Both exporters get the same at the same moments. One sends to a collector that dies ten times and is away for an hour of
recorded time, and is killed itself, also while it sends what waited. Then, of the collector's prints:

- every span and every log record of the other one is there, and nothing else, with the same content; only of states, which
  are looked at once a second, the two may have seen others: of the pushed runs each end is told, and by one record;
- what arrived more than once is the same each time, and is of the one request that was on its way at a kill, as no
  protocol can know whether that was taken: one batch of each signal at most for each kill, nothing where nobody died;
- what is missing was acknowledged by the collector a moment before it was killed: rotel answers before it prints, and what
  it then takes with it nobody can bring back. Someone between the two noted what was acknowledged;
- every parent is there; nothing that ran has no length.

Arguments: the exporter's binary, the seed (printed; another one otherwise).
"""

import collections
import datetime
import http.client
import http.server
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from collector import Collector, free_port, within

EXPORTER = sys.argv[1]
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
DICE = random.Random(SEED)
FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"
BATCH = 20
COLLECTOR_DEATHS = 10
HOUR = 60
# What is told is told so long after its end was read; then the next commit takes it.
SETTLES = 8
SOURCE = "chaos"
# How long pushed runs are, in milliseconds.
RUN = 50_000
STATES = ("state_changed", "stalled", "blocked", "failed", "completed", "cancelled")
ROLLOUTS = ["edit_ok", "tests_commit", "loop_reads", "long_command_polls", "goal_tools", "as_two_turns_idle"]
# With the transcripts of their sub-agents.
TRANSCRIPTS = ["todo", "loop-reads", "subagent", "subagent-bg"]
STAMP = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
# Behind such a line the turn goes on: only there a file stops for a while.
CALLS = ('"function_call"', '"custom_tool_call"', '"tool_use"')


def ask(address, path, body=None):
    request = urllib.request.Request(f"http://{address}{path}", body, {"Content-Type": "application/x-ndjson"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status, answer.read().decode()


class Witness:
    """Stands before a collector, passes requests on, and notes which of them it acknowledged. Gone while the collector is."""

    def __init__(self, collector):
        self.collector, self.port = collector, free_port()
        # When it was acknowledged, and the message.
        self.acknowledged = []
        # Seconds that each request takes on its way.
        self.delay = 0
        self.start()

    def start(self):
        witness = self

        class Pass(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(witness.delay)
                try:
                    upstream = http.client.HTTPConnection("127.0.0.1", witness.collector.http, timeout=5)
                    upstream.request("POST", self.path, body, {"Content-Type": self.headers["Content-Type"]})
                    answer = upstream.getresponse()
                    said = answer.read()
                except (OSError, http.client.HTTPException):
                    # Dead: no answer here either.
                    self.close_connection = True
                    return
                if answer.status == 200:
                    witness.acknowledged.append((time.monotonic(), body))
                try:
                    self.send_response(answer.status)
                    self.send_header("Content-Type", answer.getheader("Content-Type", ""))
                    self.send_header("Content-Length", str(len(said)))
                    self.end_headers()
                    self.wfile.write(said)
                except OSError:
                    self.close_connection = True

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Pass)
        self.server.daemon_threads = True
        # Who was killed resets its connections.
        self.server.handle_error = lambda *_: None
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.socket.close()

    def moments(self, *what):
        """When something was acknowledged."""
        return [moment for moment, body in self.acknowledged if all(part in body for part in what)]


class Exporter:
    """The program over a state folder and a home of its own."""

    def __init__(self, folder, protocol, port):
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir(parents=True)
        self.address = f"127.0.0.1:{free_port()}"
        self.env = {
            "HOME": str(self.home), "PATH": os.environ["PATH"], "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_TIMEOUT": "5000",
            "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BLRP_SCHEDULE_DELAY": "50",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(BATCH), "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE": str(BATCH),
        }
        self.lives = 0
        self.start()

    def start(self):
        self.lives += 1
        command = [
            EXPORTER, "--home", self.home, "--state-dir", self.folder / "state", "--web.listen-address", self.address,
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env)
        within("the exporter answers", self.is_ready)

    def is_ready(self):
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            return ask(self.address, "/-/ready")[0] == 200
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def push(self, events):
        status, body = ask(self.address, "/api/v1/events", "".join(json.dumps(e) + "\n" for e in events).encode())
        assert status == 202 and json.loads(body)["accepted"] == len(events), f"{status}: {body}"

    def scrape(self):
        status, body = ask(self.address, "/metrics")
        assert status == 200 and f'source="{SOURCE}"' in body
        return body

    def waiting(self):
        _, body = ask(self.address, "/metrics")
        return int(re.search(r"^agent_session_exporter_otlp_spool_items (\d+)$", body, re.M)[1])

    def dropped(self):
        counts = re.findall(r'_otlp_items_total\{[^}]*"(?:dropped|rejected|refused)"[^}]*\} (\d+)$', self.scrape(), re.M)
        assert counts
        return sum(map(int, counts))


def field(path, key):
    return re.search(f'"{key}":"([^"]+)"', path.read_text())[1]


class Growing:
    """Recordings that are written piece by piece below several homes, those of one session together, in the order of their
    times. Each piece happens just before it is written, a millisecond between two of its moments: what was over before an
    exporter began is not told."""

    def __init__(self, *recordings):
        lines = []
        for place, recording in recordings:
            stamp = ""
            for line in recording.read_text().splitlines(keepends=True):
                # A line without a time belongs to the one before it.
                stamp = max(stamp, *STAMP.findall(line)[:1], "")
                lines.append((stamp, place, line))
        lines = [(place, line) for _, place, line in sorted(lines, key=lambda line: line[0])]
        stops = [i + 1 for i, (_, line) in enumerate(lines) if any(call in line for call in CALLS)]
        stops = sorted(DICE.sample(stops, min(4, len(stops))))
        self.pieces = [lines[a:b] for a, b in zip([0, *stops], [*stops, len(lines)])]

    def grow(self, homes):
        if self.pieces:
            piece = self.pieces.pop(0)
            stamps = sorted({stamp for _, line in piece for stamp in STAMP.findall(line)})
            last = datetime.datetime.now(datetime.timezone.utc)
            new = {
                stamp: (last - datetime.timedelta(milliseconds=len(stamps) - n)).isoformat(timespec="milliseconds")
                for n, stamp in enumerate(stamps)
            }
            for place, line in piece:
                line = STAMP.sub(lambda m: new[m[0]].replace("+00:00", "Z"), line)
                for home in homes:
                    path = home / place
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("a") as out:
                        out.write(line)


def recordings():
    today = datetime.datetime.now(datetime.timezone.utc)
    for name in ROLLOUTS:
        path = FIXTURES / "codex" / f"{name}.rollout.jsonl"
        thread = field(path, "id")
        yield Growing((f".codex/sessions/{today:%Y/%m/%d}/rollout-{today:%Y-%m-%dT%H-%M-%S}-{thread}.jsonl", path))
    below = FIXTURES / "claude_code"
    project = ".claude/projects/-home-dev-project"
    for name in TRANSCRIPTS:
        path = below / f"{name}.transcript.jsonl"
        places = [(f"{project}/{field(path, 'sessionId')}.jsonl", path)]
        for agent in sorted(below.glob(f"{name}.subagent-*.transcript.jsonl")):
            places.append((f"{project}/{field(path, 'sessionId')}/subagents/agent-{field(agent, 'agentId')}.jsonl", agent))
        yield Growing(*places)


def session(name, at):
    """A session with everything that becomes a span or a record, 50 s long, in two halves."""
    told = [
        (0, "session.started", {"agent": "worker"}),
        (0, "turn.started", {"trigger": "person"}),
        (1, "workflow.step.started", {"stepId": "plan", "kind": "plan", "name": "plan"}),
        (2, "tool.started", {"callId": "a", "tool": "read"}),
        (3, "tool.ended", {"callId": "a", "outcome": "ok"}),
        (4, "plan.ready", {}),
        (5, "workflow.step.completed", {"stepId": "plan", "kind": "plan", "name": "plan", "outcome": "advanced"}),
        (6, "workflow.step.started", {"stepId": "build", "kind": "build", "name": "build"}),
        (7, "tool.started", {"callId": "b", "tool": "bash"}),
        (8, "user.action_required", {"actionId": "q", "kind": "permission", "certainty": "certain"}),
        (20, "user.action_resolved", {"actionId": "q", "resolution": "approved"}),
        (30, "tool.ended", {"callId": "b", "outcome": "error", "exitCode": 2}),
        (31, "tool.started", {"callId": "c", "tool": "edit"}),
        (32, "tool.ended", {"callId": "c", "outcome": "ok", "diffLines": 3}),
        (33, "session.blocked", {"reason": "retry", "attempt": 1}),
        (36, "tool.started", {"callId": "d", "tool": "bash"}),
        (40, "tool.ended", {"callId": "d", "outcome": "ok", "exitCode": 0}),
        (41, "verification.failed", {"evidence": "structured"}),
        (42, "task.completed", {"evidence": "structured"}),
        (45, "workflow.step.completed", {"stepId": "build", "kind": "build", "name": "build", "outcome": "advanced"}),
        (50, "turn.ended", {"outcome": "completed"}),
    ]
    events = [
        {
            "schemaVersion": "1", "id": f"{name}-{n}", "time": at + ms * 1000 + n, "source": SOURCE, "sessionId": name,
            "projectId": "shop", "requestId": "r", "type": kind, "data": data,
        }
        for n, (ms, kind, data) in enumerate(told)
    ]
    return events[:9], events[9:]


class Stage:
    """Both exporters, what they are fed, and when something died."""

    def __init__(self, work):
        self.collectors = []
        for name in ("disturbed", "calm"):
            (work / name).mkdir()
            self.collectors.append(Collector(work / name))
        self.witness = Witness(self.collectors[0])
        self.exporters = [
            Exporter(work / "disturbed" / "exporter", "http/protobuf", self.witness.port),
            Exporter(work / "calm" / "exporter", "grpc", self.collectors[1].grpc),
        ]
        self.collector, self.exporter = self.collectors[0], self.exporters[0]
        self.since = now()
        self.files = list(recordings())
        self.begun = []
        self.number = 0
        # Runs that ended later than either exporter began to count.
        self.seen_to_end = set()
        # Sizes of what was printed, each when somebody had just died, and when the collector did.
        self.deaths = []
        self.collector_died = []

    def feed(self, at, sessions=3):
        """Some sessions begin, those of the last time end, some files grow."""
        events = [event for half in self.begun for event in half]
        self.begun = []
        for _ in range(sessions):
            name = f"s{self.number}"
            first, second = session(name, at)
            if at + RUN > self.since:
                self.seen_to_end.add(name)
            self.number += 1
            events += first
            self.begun.append(second)
        for exporter in self.exporters:
            exporter.push(events)
        for file in DICE.sample(self.files, 2):
            file.grow([exporter.home for exporter in self.exporters])

    def finish(self):
        while self.begun or any(file.pieces for file in self.files):
            self.feed(now(), 0)
            for file in self.files:
                file.grow([exporter.home for exporter in self.exporters])

    def note_death(self):
        # What was on its way may be taken and printed after whoever sent it is gone.
        time.sleep(0.3)
        self.deaths.append(self.collector.out.stat().st_size)

    def kill_collector(self):
        self.collector_died.append(time.monotonic())
        self.collector.kill()
        self.witness.stop()
        self.note_death()

    def start_collector(self):
        self.collector.start()
        self.witness.start()

    def kill_exporter(self):
        self.exporter.kill()
        self.note_death()
        self.exporter.start()

    def until_printed(self, what, patience=20):
        """Waits until more arrives, then for a moment left to chance."""
        size = self.collector.out.stat().st_size
        end = time.monotonic() + patience
        while self.collector.out.stat().st_size == size:
            assert time.monotonic() < end, f"nothing arrives: {what}; {self.exporter.waiting()} items wait"
            time.sleep(0.002)
        time.sleep(DICE.uniform(0, 0.03))

    def died_with(self, *what):
        """Whether the collector acknowledged it and was killed at that moment."""
        return any(-0.1 < died - at < 0.2 for died in self.collector_died for at in self.witness.moments(*what))

    def end(self):
        for one in self.exporters + self.collectors:
            one.process.kill()
            one.process.wait()


def now():
    return int(time.time() * 1000)


def deaths_of_the_collector(stage):
    """Ten times with something on its way; the exporter dies with it twice."""
    for death in range(COLLECTOR_DEATHS):
        for _ in range(2):
            stage.feed(now() - RUN, 8)
        stage.until_printed(f"before death {death}")
        stage.kill_collector()
        assert stage.exporter.scrape(), "agents and scrapes notice nothing"
        stage.feed(now() - RUN, 1)
        if death in (3, 7):
            stage.kill_exporter()
        stage.start_collector()


def an_hour_without_network(stage):
    """Nobody listens while an hour passes in what is told; everybody else is answered as ever."""
    stage.kill_collector()
    start = now() - HOUR * 60_000
    dies = DICE.randrange(20, 40)
    for minute in range(HOUR):
        stage.feed(start + minute * 60_000 - 60_000)
        stage.exporter.scrape()
        if minute == dies:
            stage.kill_exporter()
    stage.finish()
    time.sleep(SETTLES)
    waiting = stage.exporter.waiting()
    spans = HOUR * 3 * 9
    assert waiting > spans, f"only {waiting} items wait after the hour"
    assert stage.exporter.dropped() == 0
    return waiting


def while_it_catches_up(stage):
    """What waited leaves, and meanwhile the exporter dies three times."""
    stage.kill_exporter()
    # The way is long: otherwise a fast machine would be through before anybody dies.
    stage.witness.delay = 0.04
    stage.start_collector()
    for _ in range(3):
        stage.until_printed("what waited leaves", 40)
        time.sleep(DICE.uniform(0, 0.2))
        assert stage.exporter.waiting() > 0, "it died too late: nothing waited any more"
        stage.kill_exporter()
    stage.witness.delay = 0


START = re.compile(r"^(?=Span #\d|LogRecord #\d|ResourceSpans #|ResourceLog #|\S*\d{4}-\d\d-\d\dT)", re.M)


class Copy:
    """One print of a span or a record."""

    def __init__(self, at, request, text):
        self.at, self.request = at, request
        # Its place in the request differs, and when an exporter heard of it.
        self.text = re.sub(r"^(Span|LogRecord) #\d+", r"\1", text)
        self.text = re.sub(r"^ObservedTimestamp.*$", "", self.text, flags=re.M).strip()
        self.is_span = text.startswith("Span")
        event = self.all(r"^EventName: agent_session\.(.*)$")
        self.is_of_state = event[:1] != [] and event[0] in STATES
        self.ends = event == ["completed"] and self.all(rf"Str\((s\d+)\)")

    def all(self, pattern):
        return re.findall(pattern, self.text, re.M)


def copies(printed):
    """By id, every print of what was printed whole, in order."""
    found = collections.defaultdict(list)
    at, request = 0, 0
    for piece in START.split(printed):
        if piece.startswith("Resource"):
            request += 1
        if piece.startswith(("Span #", "LogRecord #")):
            copy = Copy(at, request, piece)
            ids = copy.all(r"^ {4}ID *: (\w+)$" if copy.is_span else r"-> log\.record\.uid: Str\((\w+)\)$")
            if ids:
                found[copy.is_span, ids[0]].append(copy)
        at += len(piece.encode(errors="replace"))
    return found


def print_of(collector):
    return copies(collector.out.read_bytes().decode(errors="replace"))


def judge(stage):
    ours, theirs = (print_of(collector) for collector in stage.collectors)
    problems = []
    # What each looked at when is left to chance; that it is told once is not.
    for told in (ours, theirs):
        ends = collections.Counter(first.ends[0] for first, *_ in told.values() if first.ends)
        for name in sorted(stage.seen_to_end | ends.keys()):
            died = told is ours and ends[name] == 0 and stage.died_with(f"{name}".encode(), b"agent_session.completed")
            if ends[name] != 1 and not died:
                problems.append(f"{name} ended {ends[name]} times")
    states = {key: copies for key, copies in ours.items() if copies[0].is_of_state}
    compared = ours.keys() - states.keys()
    expected = {key for key, copies in theirs.items() if not copies[0].is_of_state}
    for key, told in states.items():
        problems += [f"differs:\n{copy.text}\nfrom\n{told[0].text}" for copy in told[1:] if copy.text != told[0].text]
    taken = set()
    for key in expected - compared:
        # Records have their id as text.
        if stage.died_with(bytes.fromhex(key[1]) if key[0] else key[1].encode()):
            taken.add(key[1])
        else:
            problems.append(f"never arrived:\n{theirs[key][0].text}")
    for key in compared - expected:
        problems.append(f"nobody else tells it:\n{ours[key][0].text}")
    for key in compared & expected:
        for copy in ours[key] + theirs[key][1:]:
            if copy.text != theirs[key][0].text:
                problems.append(f"differs:\n{copy.text}\nfrom\n{theirs[key][0].text}")
    again = collections.Counter()
    for key, told in theirs.items():
        if len(told) > 1:
            problems.append(f"told again where nobody died:\n{told[0].text}")
    for key, told in ours.items():
        for first, second in zip(told, told[1:]):
            between = [n for n, size in enumerate(stage.deaths) if first.at < size <= second.at]
            if not between:
                problems.append(f"told again where nobody died:\n{first.text}")
            else:
                again[key[0], between[0], first.request] += 1
    for (is_span, death), requests in collections.Counter((a, b) for a, b, _ in again).items():
        if requests > 1:
            problems.append(f"{requests} requests came again after death {death}")
    if any(n > BATCH for n in again.values()):
        problems.append(f"more than a request came again: {again}")
    spans = {id: told[0] for (is_span, id), told in ours.items() if is_span}
    for span in spans.values():
        start, end = (int(span.all(rf"^ *{what} time *: (\d+)$")[0]) for what in ("Start", "End"))
        if end <= start:
            problems.append(f"without length:\n{span.text}")
        for parent in span.all(r"^ {4}Parent ID *: (\w+)$"):
            if parent not in spans and parent not in taken:
                problems.append(f"an orphan:\n{span.text}")
    if problems:
        print(f"{len(problems)} problems:", *problems[:6], sep="\n\n")
        sys.exit(f"chaos.py: seed {SEED}")
    return len(spans), len(ours) - len(spans), sum(again.values()), len(taken)


def main(work):
    print(f"seed {SEED}", flush=True)
    started = time.monotonic()
    stage = Stage(work)
    try:
        stage.feed(now() - RUN)
        deaths_of_the_collector(stage)
        waited = an_hour_without_network(stage)
        while_it_catches_up(stage)
        for exporter in stage.exporters:
            within("nothing waits", lambda: exporter.waiting() == 0)
        time.sleep(0.5)
        assert stage.exporter.dropped() == 0
        spans, records, again, taken = judge(stage)
    except BaseException:
        if keep := os.environ.get("CHAOS_KEEP"):
            subprocess.run(["cp", "-r", work, keep], check=True)
        raise
    finally:
        stage.end()
    print(
        f"{COLLECTOR_DEATHS} deaths of the collector, an hour without it ({waited} items waited), {stage.exporter.lives - 1} "
        f"of the exporter: {spans} spans and {records} records arrived as without, {again} of them again, "
        f"{taken} acknowledged ones died with the collector, in "
        f"{time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(pathlib.Path(folder))
