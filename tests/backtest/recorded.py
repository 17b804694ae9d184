"""The recorded scenarios of all sources, as `replay` takes them."""

import collections
import json
import shutil

from promtool import ROOT, Case

FIXTURES = ROOT / "tests/fixtures"
# Behind the last record: longer than everything waits that asks for a person or holds silence against a session.
UNTIL = "+45m"
# Files beside rollouts that no session of the agent is: what `codex exec --json` prints.
NOT_ROLLOUTS = ("exec-json", "format-drift")


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def named(lines, field):
    """What the last line that has the field says."""
    return next(line[field] for line in reversed(lines) if line.get(field))


def codex():
    threads = collections.defaultdict(list)
    for path in sorted((FIXTURES / "codex").glob("*.rollout*.jsonl")):
        threads[path.name.split(".rollout")[0]].append(path)
    for path in sorted((FIXTURES / "public/codex").glob("*")):
        if path.name not in (*NOT_ROLLOUTS, "README.md"):
            threads[f"public-{path.stem}" if path.is_file() else f"public-{path.name}"] += (
                [path] if path.is_file() else sorted(path.rglob("*.jsonl")))
    for name, paths in threads.items():
        yield Case(f"codex/{name}", [f"codex:{path}" for path in paths], until=UNTIL)


def claude_code(folder):
    own = FIXTURES / "claude_code"
    for main in sorted(own.glob("*.transcript.jsonl")):
        name, _, rest = main.name.partition(".")
        if rest == "transcript.jsonl":
            yield Case(f"claude_code/{name}", list(home(own, name, folder / "claude_code" / name)), until=UNTIL)
    for group in ("claude-code", "derived"):
        for path in sorted((FIXTURES / "public" / group).glob("cc-*")):
            files = [path] if path.is_file() else sorted(path.rglob("*.jsonl"))
            yield Case(f"claude_code/public-{path.name.removesuffix('.jsonl')}", [f"claude_code:{file}" for file in files],
                       until=UNTIL)


def home(own, name, folder):
    """The files of a scenario as they lay in the agent's folder, sub-agents below their session, and its registry."""
    project = folder / "projects/p"
    mains = sorted(own.glob(f"{name}.transcript*.jsonl"))
    session = None
    for path in mains:
        session = session or named(read(path), "sessionId")
        copy = project / f"{named(read(path), 'sessionId')}.jsonl"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
        yield f"claude_code:{copy}"
    for path in sorted(own.glob(f"{name}.subagent-*.transcript.jsonl")):
        copy = project / session / "subagents" / f"agent-{named(read(path), 'agentId')}.jsonl"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
        yield f"claude_code:{copy}"
    yield f"push:{write(folder / 'registry.ndjson', registry(own, name, mains))}"


def registry(own, name, transcripts):
    """What the live registry said: who waits for a person, and whose process was found dead with its file left behind.
    Generic events have no word for a process that is proven gone; its session ends in failure here."""
    asks, last = None, None

    def event(ms, kind, data, session):
        return {"schemaVersion": "1", "source": "claude_code", "sessionId": session, "id": f"registry:{ms}:{kind}", "time": ms,
                "type": kind, "data": data}

    lines = read(own / f"{name}.sessions.ndjson")
    for line in lines:
        content = line["content"] or {}
        at = content.get("statusUpdatedAt", line["t"])
        if asks:
            yield event(at, "user.action_resolved", {"actionId": f"registry:{asks}"}, last)
            asks = None
        last = content.get("sessionId", last)
        if content.get("status") == "waiting":
            kind = {"permission prompt": "permission", "input needed": "question"}.get(content["waitingFor"], "other")
            asks = at
            yield event(at, "user.action_required", {"actionId": f"registry:{at}", "kind": kind}, last)
    if lines[-1]["content"] is not None:
        times = [line["timestamp"] for path in transcripts for line in read(path) if line.get("timestamp")]
        yield {**event(0, "session.ended", {"outcome": "failed"}, last), "time": max(times)}


def servers(recordings):
    """What the tests of each server left: see tests/common/tape.rs."""
    for source in ("openfox", "opencode", "gobby"):
        paths = sorted((recordings / source).glob("*.ndjson"))
        if not paths:
            raise SystemExit(f"there are no recordings in {recordings / source}: run the tests of {source} first")
        for path in paths:
            yield Case(f"{source}/{path.stem}", [f"{source}:{path}"], until=UNTIL)


def spec(folder):
    """The status file alone, and with it what the engine and its agents pushed."""
    own = FIXTURES / "spec"
    for path in sorted(own.glob("*.status.ndjson")):
        name = path.name.removesuffix(".status.ndjson")
        lines = [{"t": line["at"], "record": line["snapshot"]} for line in read(path)]
        status = f"spec:{write(folder / 'spec' / name / 'shop.ndjson', lines)}"
        yield Case(f"spec/{name}", [status], until=UNTIL)
        pushed = [{"source": "spec", "sessionId": "shop", "projectId": "shop", "type": f"orchestrator.{kind}", "time": line["at"],
                   "data": line}
                  for file, kind in (("events", "event"), ("codex", "codex")) if (own / f"{name}.{file}.ndjson").exists()
                  for line in read(own / f"{name}.{file}.ndjson")]
        if pushed:
            told = write(folder / "spec" / name / "pushed.ndjson", sorted(pushed, key=lambda item: item["time"]))
            yield Case(f"spec/{name} with what was pushed", [status, f"push:{told}"], until=UNTIL)


def cases(folder, recordings):
    yield from codex()
    yield from claude_code(folder)
    yield from servers(recordings)
    yield from spec(folder)
