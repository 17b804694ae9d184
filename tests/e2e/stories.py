"""What the sessions of the test do, as events that are pushed to the exporter.

Their times lie in the past, so that clocks and counts are old at once and no threshold has to be made smaller.
"""

import itertools
import time

SOURCE, PROJECT = "my_bot", "shop"
numbers = itertools.count()


def told(session, *facts):
    """Events of one session. Each fact: seconds ago, type, data."""
    now = time.time()
    for ago, kind, data in facts:
        yield dict(
            schemaVersion="1", id=f"e{next(numbers)}", time=int((now - ago) * 1000), source=SOURCE, projectId=PROJECT,
            sessionId=session, type=kind, data=data,
        )


def began(ago):
    """A session that works on what a person asked for."""
    return (ago, "session.started", {"agent": "my-bot"}), (ago - 10, "turn.started", {"trigger": "person"})


def call(ago, tool, started=None, ended=None):
    own = {"callId": f"c{next(numbers)}", "tool": tool}
    yield ago, "tool.started", own | (started or {})
    yield ago - 0.01, "tool.ended", own | {"outcome": "ok"} | (ended or {})


def reads(count, first, last, name=None):
    """So many reads between two moments: whole files of a hundred lines, each another one unless a name is given."""
    for n in range(count):
        ago = first - (first - last) * n / count
        lines = {"start": 1, "end": 100, "total": 100}
        yield from call(ago, "read", {"target": name or f"file-{next(numbers)}", "readRange": lines})


def edit(ago):
    return call(ago, "edit", {"target": "main.rs"}, {"diffLines": 4})


def loop(first, last=1):
    """Reads of one file, over and over."""
    return reads(70, first, last, "circle")


def spins():
    """A loop in which nothing lands for longer than 45 minutes."""
    return told("loops", *began(3000), *loop(600))


def lands():
    return told("loops", *edit(0.1))


def spins_again():
    return told("loops", *loop(0.9, 0.1))


def fails_alike():
    """New commands that all end with one error: no loop of calls, but one of errors."""
    fails = {"outcome": "error", "error": "no such device"}
    calls = (call(600 - n * 9, "bash", {"args": {"command": f"try {n}"}}, fails) for n in range(65))
    return told("errs", *began(3000), *itertools.chain(*calls))


def fails_again(first, last, *facts):
    """One command that fails, over and over: a loop of errors first, then one of calls as well."""
    fails = {"outcome": "error", "error": "no such device"}
    calls = (call(ago, "bash", {"args": {"command": "try"}}, fails) for ago in range(first, last, -10))
    return told("fails", *facts, *itertools.chain(*calls))


def now_and_then(first, last):
    """One call again and again among others."""
    pairs = (itertools.chain(reads(1, ago + 4, ago), call(ago, "grep", {"target": "todo"})) for ago in range(first, last, -20))
    return itertools.chain(*pairs)


def comes_back():
    """Too few calls for one that gets nowhere."""
    return told("slow", *began(3000), *now_and_then(600, 60))


def comes_back_more():
    return told("slow", *now_and_then(55, 0), *reads(15, 10, 1))


def goes_round():
    """A workflow that enters its step again and again, each time with a turn that no person began."""
    rounds = []
    for n in range(22):
        ago = 600 - n * 20
        rounds += [
            (ago, "turn.started", {"trigger": "machine"}),
            (ago - 1, "workflow.step.started", {"stepId": "verify", "kind": "verify", "entry": n + 1}),
            (ago - 9, "workflow.step.completed", {"stepId": "verify", "kind": "verify", "outcome": "looped_back"}),
            (ago - 10, "turn.ended", {"outcome": "completed"}),
        ]
    return told("rounds", *began(3000), *rounds, (5, "turn.started", {"trigger": "machine"}))


def asks(session, ago):
    """A permission and a question are open at once, which a rule could stumble over."""
    opened = [(ago, "user.action_required", {"actionId": "p", "kind": "permission"})]
    opened.append((ago - 100, "user.action_required", {"actionId": "q", "kind": "question"}))
    return told(session, *began(ago + 60), *opened)


def permits(session):
    """The older request is answered; the other stays."""
    return told(session, (0.1, "user.action_resolved", {"actionId": "p", "resolution": "granted"}))


def works():
    """Honest work, that nobody is to hear of: much is read, and then something lands."""
    rounds = (itertools.chain(reads(15, ago + 60, ago + 10), edit(ago)) for ago in range(2800, 0, -100))
    return told("works", *began(3000), *itertools.chain(*rounds))


def crowd(count):
    """Many more that work."""
    for n in range(count):
        yield from told(f"crowd-{n}", *began(300), *reads(5, 200, n % 60))
