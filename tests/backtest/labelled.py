"""The labelled sessions as pushed events, cut at each moment of judgement: what the fold's own test tells it
(tests/fold/calls.rs), in the generic schema."""

import dataclasses
import datetime
import json

from promtool import ROOT, Case

FOLDER = ROOT / "tests/fixtures/labelled"
# As long as the most patient rule about loops waits.
WAIT_MS = 11 * 60_000
# No row tells the end of a turn. Of this session the labels do: it is idle since last night. By then its loop is resolved;
# OPEN is the same without that end.
IDLE = "26-idle-finished"
OPEN = f"labelled/{IDLE} with its turn left open"
CLASSES = {"read": "read", "grep": "search", "glob": "search", "list": "search", "edit": "edit", "write": "edit",
           "bash": "shell", "task": "task", "question": "user", "todowrite": "plan"}


@dataclasses.dataclass
class Moment:
    """When a case is judged, and what is right then."""

    label: dict
    name: str
    verdict: str
    first_ms: int
    at_ms: int
    digests: bool
    number: int

    @property
    def at(self):
        """Seconds from the first scrape."""
        return (self.at_ms - self.first_ms) / 1000

    def calls(self, second):
        """Calls that had begun by then."""
        until = min(self.first_ms + second * 1000, self.at_ms)
        return sum(row["ts_ms"] <= until for row in rows(self.label))


def moment(ms):
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.timezone.utc).isoformat(timespec="milliseconds")


def labels():
    return json.loads((FOLDER / "labels.json").read_text())["cases"]


def rows(case):
    read = [json.loads(line) for line in (FOLDER / case["file"]).read_text().splitlines()]
    return sorted(read, key=lambda row: row["ts_ms"])


def moments(case):
    """When it is judged, and what is right then."""
    return [(c["at_ms"], c["verdict"]) for c in case.get("checkpoints") or [{"at_ms": case["now_ms"], "verdict": case["verdict"]}]]


def lines(row, file_lines):
    """The lines that a read asks for; nothing where nobody knows how many there are."""
    path = row["args"].get("filePath") if row["args"] else None
    if CLASSES.get(row["tool"]) != "read" or path is None:
        return None
    first, limit, total = row["args"].get("offset", 0), row["args"].get("limit"), file_lines.get(path)
    last = first + limit if limit is not None else total
    if last is None:
        return None
    asked = {"start": first + 1, "end": max(last, first + 1)}
    return asked if total is None else {**asked, "total": total}


def events(case, until, digests, idle=True):
    """Everything that was known by then, in order."""
    told, begun = [], set()
    for n, row in enumerate(rows(case)):
        session, call = row["session"], f"c{n}"
        known = case["sessions"][session]
        base = {"schemaVersion": "1", "source": "labelled", "sessionId": session, "projectId": "p"}
        if row["parent"]:
            base["parentSessionId"] = row["parent"]

        def tell(ms, rank, kind, data):
            told.append((ms, rank, {**base, "id": f"{call}:{kind}", "time": ms, "type": kind, "data": data}))

        if session not in begun:
            begun.add(session)
            tell(row["ts_ms"] - 1, 0, "session.started", {"agent": known["agent"], "readOnly": bool(known.get("read_only"))})
            tell(row["ts_ms"] - 1, 1, "turn.started", {"trigger": "machine" if row["parent"] else "person"})
        start = {"callId": call, "tool": row["tool"], "toolClass": CLASSES.get(row["tool"], "other"), "args": row["args"],
                 "target": row["target"], "readRange": lines(row, case.get("file_lines", {}))}
        tell(row["ts_ms"], 2, "tool.started", {k: v for k, v in start.items() if v is not None})
        if row["end_ms"] is None:
            if start["toolClass"] == "user":
                tell(row["ts_ms"], 3, "user.action_required", {"actionId": call, "kind": "question", "callId": call})
            continue
        failed = row["error"] is not None or row["exit_code"] not in (None, 0)
        end = {"callId": call, "outcome": "error" if failed else "ok", "exitCode": row["exit_code"], "diffLines": row["diff_lines"],
               "error": row["error"], "tool": row["tool"], "outputDigest": row.get("out") if digests else None}
        tell(row["end_ms"], 2, "tool.ended", {k: v for k, v in end.items() if v is not None})
    if idle and case["file"].startswith(IDLE):
        tell(row["end_ms"] + 60_000, 4, "turn.ended", {"outcome": "completed"})
    told.sort(key=lambda event: event[:2])
    return [event for ms, _, event in told if ms <= until]


def cases(folder):
    """Each case at each of its moments, with digests of outputs and without: the case, and what belongs to it."""
    for case in labels():
        for n, (at, verdict) in enumerate(moments(case), 1):
            for digests in (True, False):
                stem = case["file"].removesuffix(".ndjson")
                many = f" at checkpoint {n}" if len(moments(case)) > 1 else ""
                name = f"labelled/{stem}{many}{'' if digests else ' without digests'}"
                told = events(case, at, digests)
                step = 15 if at - told[0]["time"] < 2 * 3_600_000 else 60
                yield Case(name, [write(folder / f"{stem}-{n}-{digests}.ndjson", told)], step, moment(at + WAIT_MS)), Moment(
                    case, stem + many, verdict, told[0]["time"], at, digests, n)


def left_open(folder):
    """The idle session without the end of its turn."""
    case = next(case for case in labels() if case["file"].startswith(IDLE))
    told = events(case, case["now_ms"], True, idle=False)
    return Case(OPEN, [write(folder / "left-open.ndjson", told)], 60, moment(case["now_ms"]))


def write(path, told):
    path.write_text("".join(json.dumps(event) + "\n" for event in told))
    return f"push:{path}"
