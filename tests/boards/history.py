"""What the boards' test loads into Prometheus: recorded files, turned by `replay` into what scrapes of them would have
shown, as blocks.

Nearly all of it was recorded on one afternoon. What no recorded agent did (a request to stop, costs, orchestrations that
announce all their limits) is told by pushed events (feed.py), an hour apart up to the moment at which the boards are
looked at. What was recorded months before is played by itself, so that nothing has to be written of the time between.
"""

import datetime
import json
import pathlib
import re
import shutil
import subprocess

import feed

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
STEP = 15


def moment(text):
    """Milliseconds."""
    return int(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


# The boards are looked at now; the last push was just before, so that at least one scrape saw it.
AT = moment("2026-11-29T16:00:00Z")
PUSHED = [AT - ago * 60_000 - 20_000 for ago in (120, 60, 0)]
SPAN = 3 * 3600
# Those whose files or streams are played, and who pushes.
SOURCES = {"claude_code", "codex", "opencode", "openfox", "gobby", "spec", "everything"}


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_server(path, lines):
    """What a server said, in order. It stays there in silence for a minute more: some ends are only concluded from it."""
    timed = (line | {"t": moment(line["t"]) if isinstance(line["t"], str) else line["t"]} for line in lines)
    told = sorted(timed, key=lambda line: line["t"])
    return write(path, [*told, {"t": told[-1]["t"] + 60_000, "connected": True}])


# === Recordings, in the form that replay takes ===


def codex(_):
    """Rollouts as they are; those that were copied while they grew are there a second time."""
    return [path for path in FIXTURES.glob("codex/*.rollout*.jsonl") if ".at_" not in path.name]


def claude_code(folder):
    """Transcripts by session, and below it its sub-agents, as in an agent's home."""
    for path in FIXTURES.glob("claude_code/*.transcript*.jsonl"):
        told = lines_of(path)
        session = next(line["sessionId"] for line in told if "sessionId" in line)
        agent = next((line["agentId"] for line in told if line.get("isSidechain")), None)
        place = folder / session / "subagents" / f"agent-{agent}.jsonl" if agent else folder / f"{session}.jsonl"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    return sorted(folder.rglob("*.jsonl"))


def opencode(folder):
    """Streams of one directory, in the form of all directories; what was answered, by its time."""
    made = []
    for path in FIXTURES.glob("opencode/*.rest.json"):
        name = path.name.split(".")[0]
        answers = json.loads(path.read_text())
        zero = answers[0]["wallMs"] - answers[0]["t"]
        told = []
        for entry in answers:
            for asked, answer in entry.get("rest", {}).items():
                if asked.startswith("GET ") and isinstance(answer, dict) and "body" in answer:
                    told.append({"t": zero + entry["t"], "answer": {"path": asked.removeprefix("GET "), **answer}})
        for stream in FIXTURES.glob(f"opencode/{name}*.sse.ndjson"):
            if re.fullmatch(rf"{name}(\.reconnect)?\.sse\.ndjson", stream.name):
                for line in lines_of(stream):
                    frame = {"directory": "/home/dev/project", "project": "p", "payload": line["event"]}
                    told.append({"t": zero + line["t"], "record": frame})
        made.append(write_server(folder / f"{name}.ndjson", told))
    return made


def openfox(folder):
    """Frames and answers."""
    made = []
    for path in FIXTURES.glob("openfox/*.ws.ndjson"):
        told = []
        for line in lines_of(path):
            what = {"record": line["frame"]} if "frame" in line else {"connected": line["connection"] == "opened"}
            told.append({"t": line["receivedAt"], **what})
        name = path.name.split(".")[0]
        for entry in json.loads((FIXTURES / f"openfox/{name}.rest.json").read_text())["entries"]:
            if entry["method"] == "GET":
                told.append({"t": entry["at"], "answer": {key: entry[key] for key in ("path", "status", "body")}})
        made.append(write_server(folder / f"{name}.ndjson", told))
    return made


def gobby(folder):
    """Frames and answers of one daemon of each version."""
    made = []
    for name in ("0.2.5-ws-session", "0.2.5-ws-autonomous", "0.4.6-ws-star"):
        version = name[:5]
        told = [{"t": line["recv_at"], "record": line["frame"]} for line in lines_of(FIXTURES / f"gobby/{name}.ndjson")]
        prefix = "" if version == "0.2.5" else "/api"
        for line in lines_of(FIXTURES / f"gobby/{version}-http.ndjson"):
            if line["method"] == "GET":
                answer = {"path": prefix + line["path"], "status": line["status"], "body": line["response"]}
                told.append({"t": line["at"], "answer": answer})
        made.append(write_server(folder / f"{name.replace('.', '_')}.ndjson", told))
    return made


def spec(folder):
    """Contents of status files, one after the other."""
    made = []
    for path in FIXTURES.glob("spec/*.status.ndjson"):
        told = [{"t": line["at"], "record": line["snapshot"]} for line in lines_of(path)]
        made.append(write(folder / f"{path.name.removesuffix('.status.ndjson').replace('.', '_')}.ndjson", told))
    return made


def pushed(folder, address):
    """Everything that the schema knows, at several times. A line of a recording was written when it says or later: what is
    dated ahead would put all that follows there."""
    made = []
    for n, at in enumerate(PUSHED):
        made.append(write(folder / f"{n}.ndjson", [event for event in feed.feed(address, n, at, 20) if event["time"] <= at]))
    return made


def elder(_):
    """A session of another season."""
    return [FIXTURES / "public/claude-code/cc-2.0.76-compaction.jsonl"]


# === Into blocks ===


def replay(exporter, files, output, log, *more):
    """Recorded files to OpenMetrics."""
    command = [exporter, "replay", f"--step={STEP}s", "--label=job=any", "--label=instance=history", f"--output={output}", *more]
    with open(log, "a") as out:
        subprocess.run([*command, *files], check=True, stderr=out)


def blocks(text, data):
    """OpenMetrics into the folder of a Prometheus."""
    subprocess.run(["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", text, data], check=True, stdout=subprocess.DEVNULL)


def load(exporter, address, work):
    """Replays every recording into the data of a Prometheus that is yet to be started; `address` is asked for the schema.
    Returns how many files that were."""
    given = []
    for source in (codex, claude_code, opencode, openfox, gobby, spec):
        folder = work / "recorded" / source.__name__
        folder.mkdir(parents=True)
        given += [f"{source.__name__}:{path}" for path in sorted(source(folder))]
    (work / "recorded/push").mkdir()
    given += [f"push:{path}" for path in pushed(work / "recorded/push", address)]
    until = datetime.datetime.fromtimestamp(AT / 1000, datetime.timezone.utc).isoformat()
    replay(exporter, given, work / "history.om", work / "replay.log", f"--until={until}")
    replay(exporter, [f"claude_code:{path}" for path in elder(work)], work / "elder.om", work / "replay.log")
    for text in ("history.om", "elder.om"):
        blocks(work / text, work / "tsdb")
    return len(given) + 1
