"""Prints one event of every kind the schema knows, as lines that can be pushed: a session that works, one that ended.

Argument: the address of an exporter, whose schema is read.
"""

import json
import sys
import time
import urllib.request

with urllib.request.urlopen(f"{sys.argv[1]}/api/v1/schema/event.json", timeout=10) as answer:
    examples = json.load(answer)["examples"]

now = int(time.time() * 1000)
over = ("session.ended", "session.deleted")
orchestrated = [e for e in examples if e["sessionId"] == "shop"]
examples = [e for e in examples if e not in orchestrated]
for session in ("works", "ended"):
    # What ended last is what shows: the end goes behind everything else.
    kept = [e for e in examples if e["type"] not in over]
    if session == "ended":
        kept += [e for e in examples if e["type"] == "session.ended"]
    for number, event in enumerate(kept):
        event = event | {"id": f"{session}-{number}", "time": now - 5000 + number, "source": "everything"}
        event |= {"sessionId": session, "projectId": "shop"}
        event.pop("parentSessionId", None)
        if "until" in event.get("data", {}):
            event["data"] = event["data"] | {"until": now + 600_000}
        print(json.dumps(event))
for number, (kind, data) in enumerate(
    [
        ("turn.started", {"trigger": "person"}),
        ("tool.started", {"callId": "open", "tool": "read"}),
        ("user.action_required", {"actionId": "open", "kind": "question"}),
        ("workflow.step.started", {"stepId": "open", "kind": "build", "name": "build"}),
        ("user.prompt", {"trigger": "person", "queued": True}),
        # Behind the prompt, which begins the count of calls anew.
        ("tool.started", {"callId": "lines", "tool": "read", "target": "a", "readRange": {"start": 1, "end": 9, "total": 99}}),
        ("session.blocked", {"reason": "rate_limit", "attempt": 2, "until": now + 600_000}),
        ("stop.requested", {"requester": "cli"}),
        ("stop.acknowledged", {}),
    ]
):
    event = {"id": f"open-{number}", "time": now - 1000 + number, "source": "everything", "sessionId": "works"}
    print(json.dumps(event | {"projectId": "shop", "type": kind, "data": data}))
child = {"id": "child", "time": now, "source": "everything", "sessionId": "child", "parentSessionId": "works"}
print(json.dumps(child | {"projectId": "shop", "type": "turn.started", "data": {"trigger": "machine"}}))
# An orchestration is a session of its own: what the schema shows of one, and everything else that has a metric.
told = [(e["type"], e["data"]) for e in orchestrated] + [
    ("spec.updated", {"spec": "failed", "status": "failed", "batch": 1, "retryCount": 2, "errorClass": "timeout"}),
    ("rate_limit.signal", {"spec": "101-parser", "delayMs": 900, "launchHoldMs": 500, "class": "http_429"}),
    ("orchestrator.event", {"event": "spec:rate-limited", "data": {"specName": "101-parser", "retryCount": 0}}),
    ("orchestrator.event", {"event": "parallel:throttled", "data": {"effectiveMaxParallel": 1, "reason": "rate-limit"}}),
    ("orchestrator.event", {"event": "parallel:recovered", "data": {"effectiveMaxParallel": 2}}),
    ("stop.requested", {"requester": "cli"}),
    ("orchestration.updated", {"state": "failed"}),
]
for number, (kind, data) in enumerate(told):
    data = {name: value for name, value in data.items() if name not in ("at", "startedAt")}
    event = {"id": f"run-{number}", "time": now - 4000 + number, "source": "everything", "sessionId": "run"}
    print(json.dumps(event | {"projectId": "shop", "type": kind, "data": data}))
