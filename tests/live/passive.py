"""The proof of passivity: one task without the exporter and one with it leave the same behind.

Both runs have the same paths and ports, one after the other; in the second the exporter reads along and is scraped all the
time. Compared are the bodies of all requests to the model byte for byte, every file below the home, the project and the
temporary folder, what the agent printed, and how it ended. What differs between any two runs of an agent is taken out
before, by the rules below and by no others.
"""

import difflib
import json
import pathlib
import re
import shutil
import sqlite3
import tempfile
import threading
from dataclasses import asdict, dataclass

from agents import AGENTS
from exporter import Exporter, Failed
from models.server import say
from scenarios import TASK
from world import World

# === Rules ===

# What is taken out of every text, name and row: what stands there instead, how it looks, and why it differs.
RULES = [
    ("uuid", r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])", "random ids of sessions, turns, lines"),
    ("id", r"\b(?:ses|msg|prt|evt)_[0-9a-f]{12}[0-9A-Za-z]{14}\b", "opencode's ids: a time and random letters"),
    ("digest", r"\b[0-9a-f]{64}\b", "Claude Code's made-up names of machine and user, and digests of texts that hold ids"),
    ("time", r"\b20\d\d-\d\d-\d\d[T ]\d\d[:-]\d\d[:-]\d\d(?:\.\d+)?Z?", "moments as texts, in names of files, too"),
    ("epoch", r"\b1[789]\d{8}(?:\d{3})?(?:\.\d+)?\b", "moments as numbers, in seconds or milliseconds"),
    ("slug", r'(?<="slug":)"?[a-z]+-[a-z]+"?', "opencode's random nickname of a session"),
    ("chunk", r"(?<=Chunk ID: )[0-9a-f]{6}", "Codex's random number of a piece of output, which it tells the model"),
    ("wall", r"(?<=Wall time: )[0-9.]+(?= seconds)", "how long a command took, which Codex tells the model"),
    ("took", r"(?<= succeeded in )\d+ms", "the same as Codex prints it"),
    ("process", r'(?<="process_id":")\d+|(?<="processId":")\d+', "Codex's random number of a running command"),
    ("library", r"(?<=\.)[0-9a-f]{16}-[0-9a-f]{8}(?=\.so)", "a library that opencode's runtime unpacks under a random name"),
    ("ordinal", r'(?<=ordinal":)\d+', "Codex's numbers of lines, of which two may change places"),
    # Keys of JSON (and columns) whose numbers are lengths of time, or places in files that shift with such numbers.
    (
        "measured",
        r'(?<=")(\w*(?:[dD]uration|_ms|Ms|MS|execution_time|byte_offset|nanos|secs)\w*"): ?\d+(?:\.\d+)?',
        "how long things took, and where lines of varying length begin",
    ),
]

# Pairs of runs of which one has to be equal.
PAIRS = 3

# Codex writes what it was told about usage beside what was done, and either line may come first.
UNORDERED = re.compile(r"\.codex/sessions/.*\.jsonl$")

# Claude Code writes bookkeeping lines between the others when a timer says so: neither their place nor their number counts.
REPEATED = re.compile(r"\.claude/projects/.*\.jsonl$")

# opencode collects lines of its log and loses the last ones when it is told to end: only its being there is compared.
LOSSY = re.compile(r"opencode/log/opencode\.log$")

# Beside a database lie its newest pages; they are read with it, and whether they are still there is a matter of timing.
PARTS_OF_DATABASES = ("-wal", "-shm")


def normal(text):
    for name, pattern, _ in RULES:
        replacement = rf"\1:<{name}>" if name == "measured" else f"<{name}>"
        text = re.sub(pattern, replacement, text)
    return text


def body(raw):
    """A request's body. Codex writes the keys of its metadata in an order that changes with every request."""
    text = raw.decode()
    flat = re.compile(r'(?<="client_metadata":)\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
    return normal(flat.sub(lambda match: json.dumps(json.loads(match[0]), sort_keys=True), text))


def database(path):
    """The rows of a database, sorted: pages and their order differ between databases that say the same."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        # A copy, because reading one writes beside it.
        for each in (path, *(path.with_name(path.name + part) for part in PARTS_OF_DATABASES)):
            if each.exists():
                shutil.copy(each, folder)
        opened = sqlite3.connect(pathlib.Path(folder) / path.name)
        for (table,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            names = [column[1] for column in opened.execute(f'PRAGMA table_info("{table}")')]
            for values in opened.execute(f'SELECT * FROM "{table}"'):
                shown = [each.hex() if isinstance(each, bytes) else each for each in values]
                # Texts that are JSON themselves are not quoted again, so that the rules see their keys.
                rows.append(table + " " + ", ".join(f'"{name}":{value}' for name, value in zip(names, shown)))
        opened.close()
    return "\n".join(sorted(normal(row) for row in rows))


def snapshot(world):
    """Everything that lies in the agent's reach, by its normal name."""
    found = {}
    for root in (world.home, world.project, world.folder / "tmp"):
        for path in sorted(root.rglob("*")):
            name = normal(str(path.relative_to(world.folder)))
            if path.is_symlink():
                found[name] = f"link to {normal(str(path.readlink()))}"
            elif path.is_dir():
                found[name] = "folder"
            elif path.is_file() and not path.name.endswith(PARTS_OF_DATABASES):
                head = path.read_bytes()
                is_database = head.startswith(b"SQLite format 3\0") or path.suffix in (".db", ".sqlite")
                text = database(path) if is_database else normal(head.decode(errors="backslashreplace"))
                if UNORDERED.search(name):
                    text = "\n".join(sorted(text.splitlines()))
                if REPEATED.search(name):
                    text = "\n".join(sorted(set(text.splitlines())))
                found[name] = "a log" if LOSSY.search(name) else text
    return found


# === Runs ===


@dataclass
class Trace:
    """All that a run left behind, in its normal form."""

    requests: list
    side_requests: list
    other_requests: list
    ending: object
    output: str
    files: dict


class Reader:
    """The exporter in the second run: it reads along and is scraped without a pause."""

    def __init__(self, bench, world, agent):
        self.exporter = Exporter(bench.exporter, world, agent.source, bench.config(agent, ""))
        self.exporter.await_source(agent)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.scrape)
        self.thread.start()

    def scrape(self):
        while not self.stopped.wait(0.2):
            self.exporter.samples()

    def saw_it(self):
        # An exporter that saw nothing would prove nothing.
        for phase in TASK.phases:
            self.exporter.await_all(phase.expect + phase.also.get(self.exporter.source, []), phase.within)

    def close(self):
        self.stopped.set()
        self.thread.join()
        self.exporter.close()


def run(name, bench, with_exporter, ports):
    world = World(bench.folder / f"{name}-passive")
    model = agent = reader = None
    try:
        model = AGENTS[name].model_kind([], ports[0])
        agent = AGENTS[name](world, bench.binaries[name], model, ports[1])
        # Without its output: a test runner tells how long it took.
        model.script = [agent.read(), agent.edit(), agent.test(" 2>/dev/null"), say("Add was fixed, the test passes.")]
        agent.launch()
        if with_exporter:
            reader = Reader(bench, world, agent)
        agent.start(TASK.prompt)
        ending = [agent.finish()]
        if reader:
            reader.saw_it()
        ending.append(agent.stop())
        if reader and agent.is_server and agent.proxy.offences():
            raise Failed(f"the exporter asked for more than it may: {agent.proxy.offences()}")
        agent.close()
        return Trace(
            requests=[body(raw) for raw in model.bodies],
            side_requests=sorted(body(raw) for raw in model.side_bodies),
            other_requests=sorted(model.others),
            ending=ending,
            output=normal(agent.tail(1_000_000)),
            files=snapshot(world),
        )
    finally:
        for each in (agent, reader, model, world):
            if each:
                each.close()


# === Comparison ===


def readable(value):
    """Lines for a diff, where JSON on one line would be one."""
    text = value if isinstance(value, str) else json.dumps(value, indent=1)
    return text.replace("\\n", "\n").replace(',"', ',\n"').splitlines()


def differences(what, one, two):
    """The differing parts, named down to the file or the request."""
    if one == two:
        return []
    if isinstance(one, dict):
        keys = sorted(set(one) | set(two))
        return [line for key in keys for line in differences(f"{what} {key}", one.get(key), two.get(key))]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return [line for at, pair in enumerate(zip(one, two)) for line in differences(f"{what} {at}", *pair)]
    lines = difflib.unified_diff(readable(one), readable(two), "without", "with", n=1, lineterm="")
    return [f"--- differs: {what}"] + [line[:300] for line in list(lines)[:60]]


def prove(name, bench):
    """Runs the task twice and compares; answers what was compared.

    What an agent does at once, such as asking for a title beside its task, it writes down in an order that changes from run
    to run. What an exporter left behind would be in every pair.
    """
    for _ in range(PAIRS):
        ports = [World.free_port(), World.free_port()]
        without, with_it = (run(name, bench, each, ports) for each in (False, True))
        found = differences("", asdict(without), asdict(with_it))
        if not found:
            return f"{len(with_it.requests)} requests and {len(with_it.files)} files are the same"
    raise Failed("the exporter left a trace:\n" + "\n".join(found))
