"""What the boards' test pushes: everything the schema knows, and sessions that are in trouble, anew in each round so that
counters grow."""

import json
import pathlib
import subprocess
import sys
import time

EVERYTHING = pathlib.Path(__file__).resolve().parent.parent / "e2e/everything.py"


def shifted(value, by):
    """The same, with every moment in it moved: in milliseconds, as those of this century are told."""
    if isinstance(value, dict):
        return {key: shifted(one, by) for key, one in value.items()}
    if isinstance(value, list):
        return [shifted(one, by) for one in value]
    return value + by if isinstance(value, int) and value > 1e12 else value


def everything(address, number, now):
    """One event of every kind; each round with sessions and responses of its own."""
    began = int(time.time() * 1000)
    out = subprocess.run([sys.executable, str(EVERYTHING), address], check=True, capture_output=True, text=True).stdout
    events = [shifted(json.loads(line), now - began) for line in out.splitlines()]
    for event in events:
        event["id"] = f"{event['id']}-{number}"
        for key in ("sessionId", "parentSessionId"):
            if key in event:
                event[key] = f"{event[key]}-{number}"
        if "responseId" in event.get("data", {}):
            event["data"]["responseId"] += f"-{number}"
    return events


def trouble(number, now):
    """A session that spins, one that asks, one that is held up after its context was compacted."""

    def told(session, *facts):
        for n, (ago, kind, data) in enumerate(facts):
            yield {
                "schemaVersion": "1", "source": "everything", "projectId": "shop", "sessionId": f"{session}-{number}",
                "id": f"{session}-{number}-{n}", "time": int(now - ago * 1000), "type": kind, "data": data,
            }

    started = ("session.started", {"agent": "my-bot", "model": "model-1", "provider": "acme", "url": "https://bot.example/2"})
    # Within the last second: what began before the exporter's store was made is not counted.
    calls = []
    for n in range(40):
        ago = 0.8 - n / 50
        calls.append((ago, "tool.started", {"callId": f"c{n}", "tool": "read", "args": {"path": "a"}}))
        calls.append((ago, "tool.ended", {"callId": f"c{n}", "tool": "read", "outcome": "ok"}))
    turn = ("turn.started", {"trigger": "person"})
    yield from told("spins", (1000, *started), (950, *turn), *calls)
    yield from told("asks", (1000, *started), (950, *turn), (400, "user.action_required", {"actionId": "a", "kind": "question"}))
    held = ("session.blocked", {"reason": "rate_limit", "attempt": 2, "until": now + 600_000})
    step = {"stepId": "s", "kind": "compaction"}
    compacted = ((1240, "workflow.step.started", step), (1230, "workflow.step.completed", step | {"outcome": "advanced"}))
    yield from told("held", (1300, *started), (1250, *turn), *compacted, (1200, *held))


def mistakes(number, now, many):
    """What the exporter folds, repeats, does not know or takes as undated."""
    base = {"schemaVersion": "1", "source": "everything", "projectId": "shop", "sessionId": "odd", "data": {}}
    yield base | {"id": f"known-{number}", "time": now, "type": "activity"}
    yield base | {"id": f"known-{number}", "time": now, "type": "activity"}
    yield base | {"id": f"new-{number}", "time": now, "type": "something.new"}
    yield base | {"id": f"ahead-{number}", "time": now + 3_600_000, "type": "activity"}
    # More sources than have labels of their own, and more sessions than are kept.
    for n in range(many):
        one = {"id": f"many-{n}-{number}", "time": now - 60_000, "sessionId": f"many-{n}-{number}", "source": f"source_{n % 20}"}
        yield base | one | {"type": "turn.started", "data": {"trigger": "person"}}
        yield base | one | {"id": f"over-{n}-{number}", "time": now - 59_000, "type": "turn.ended", "data": {"outcome": "completed"}}


def feed(address, number, now=None, many=60):
    """All of a round, in the order in which it is pushed, at a moment in milliseconds or at once; `many` sessions of as many
    sources as have labels and some more."""
    now = now or int(time.time() * 1000)
    return [*mistakes(number, now, many), *everything(address, number, now), *trouble(number, now)]
