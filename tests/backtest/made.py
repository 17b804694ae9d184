"""Honest work that no recording holds long enough: pushed events, as an agent would send them."""

import json

from promtool import Case

START = 1_795_900_000_000
MINUTE = 60_000


class Tale:
    """What happens in one tree of sessions."""

    def __init__(self):
        self.events = []
        self.calls = 0

    def tell(self, minute, what, session="s", /, **data):
        event = {"schemaVersion": "1", "source": "made", "sessionId": session, "projectId": "p", "id": str(len(self.events)),
                 "time": START + round(minute * MINUTE), "type": what, "data": data}
        if session != "s":
            event["parentSessionId"] = "s"
        self.events.append(event)
        return self

    def begin(self, session="s", **about):
        self.tell(0, "session.started", session, agent="made", **about)
        return self.tell(0, "turn.started", session, trigger="person" if session == "s" else "machine")

    def call(self, minute, lasts, tool, session="s", ends=None, **start):
        self.calls += 1
        call = f"c{self.calls}"
        self.tell(minute, "tool.started", session, callId=call, tool=tool, **start)
        if lasts is not None:
            self.tell(minute + lasts, "tool.ended", session, callId=call, outcome="ok", **(ends or {}))
        return self

    def edit(self, minute, session="s"):
        return self.call(minute, 0.02, "edit", session, args={"filePath": f"src/{minute}.rs"}, ends={"diffLines": 5})

    def read(self, minute, name, session="s"):
        return self.call(minute, 0.02, "read", session, args={"filePath": name}, readRange={"start": 1, "end": 200, "total": 200})

    def over(self, minute, session="s"):
        return self.tell(minute, "turn.ended", session, outcome="completed")


def test_run():
    tale = Tale().begin().edit(1)
    return tale.call(2, 30, "bash", args={"command": "cargo test"}, ends={"exitCode": 0}).edit(33).over(34)


def open_prompt():
    return Tale().begin().edit(1).over(2)


def asked_overnight():
    return Tale().begin().edit(1).tell(2, "user.action_required", actionId="a", kind="permission")


def polling():
    tale = Tale().begin().edit(1)
    for n in range(50):
        tale.call(2 + n * 1.1, 1, "bash", args={"command": "sleep 60 && gh run view 7"}, ends={"exitCode": 0, "outputDigest": "same"})
    return tale.edit(58).over(59)


def background_agent():
    tale = Tale().begin().edit(1)
    tale.call(2, 0.05, "task", args={"prompt": "migrate"}, background=True).begin("child").over(3)
    for n in range(40):
        tale.read(3 + n, f"old/{n}.rs", "child")
        if n % 5 == 4:
            tale.edit(3.5 + n, "child")
    return tale.over(44, "child")


def thinking():
    tale = Tale().begin().read(1, "a.rs")
    for n in range(120):
        tale.tell(1.1 + n / 3, "activity", **{"class": "work"})
    return tale.edit(42).over(43)


def reviewer():
    tale = Tale().begin(readOnly=True)
    for n in range(60):
        tale.read(1 + n, f"src/{n}.rs")
    return tale.tell(61.5, "activity", message=True).over(62)


ALL = {
    "a test run of 30 minutes": (test_run, 15, "+45m"),
    "a prompt that stays open overnight": (open_prompt, 60, "+14h"),
    "a permission that is asked overnight": (asked_overnight, 60, "+14h"),
    "polling once a minute for 55 minutes": (polling, 15, "+45m"),
    "an agent in the background for 40 minutes": (background_agent, 15, "+45m"),
    "thinking for 40 minutes with a stream": (thinking, 15, "+45m"),
    "a reviewer who reads 60 files in an hour": (reviewer, 15, "+45m"),
}


def cases(folder):
    for n, (name, (make, step, until)) in enumerate(ALL.items()):
        path = folder / f"made-{n}.ndjson"
        events = sorted(make().events, key=lambda event: event["time"])
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        yield Case(f"made/{name}", [f"push:{path}"], step=step, until=until)
