"""Compares what backends answer with /metrics: the same series, and values as they were between two scrapes around the question.

Arguments: the exporter's address, a file with the backends, and a session that must have no series (any more).
"""

import json
import re
import sys
import time
import urllib.parse
import urllib.request

EXPORTER, BACKENDS = sys.argv[1:3]
GONE = sys.argv[3] if len(sys.argv) > 3 else None
# Export once a second; a backend shows what it got about a second later.
SETTLES = 5
# What the process uses goes up and down between two scrapes.
UNSTEADY = re.compile("process_(resident|virtual|open)|agent_session_exporter_(queue_length|ingest_lag)")
SAMPLE = re.compile(r"([a-z0-9_]+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def get(address):
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read().decode()


def series(name, labels):
    """Empty labels are none; a bound is a number, however it is spelt."""
    kept = {k: v for k, v in labels.items() if v != ""}
    if "le" in kept:
        kept["le"] = str(float(kept["le"]))
    return name, tuple(sorted(kept.items()))


def scrape():
    found = {}
    for line in get(f"{EXPORTER}/metrics").splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.match(line).groups()
            labels = {k: json.loads(f'"{v}"') for k, v in LABEL.findall(labels or "")}
            found[series(name, labels)] = float(value)
    return found


def ask(backend):
    query = urllib.parse.urlencode({"query": '{__name__=~"agent_.+|process_.+"}', "nocache": "1"})
    found = {}
    for result in json.loads(get(f"{backend}/api/v1/query?{query}"))["data"]["result"]:
        labels = result["metric"]
        # Who sent it: attributes of the resource and of the scope, whichever form a backend gives them.
        who = {k: v for k, v in labels.items() if re.match(r"(service|scope|host|otel_scope)[._]|(job|instance)$", k)}
        assert any(v == "agent_session_exporter" for v in who.values()), labels
        rest = {k: v for k, v in labels.items() if k not in who and k != "__name__"}
        key = series(labels["__name__"], rest)
        assert key not in found, f"{key} twice"
        found[key] = float(result["value"][1])
    return found


def differences(before, answer, after):
    for key in sorted(before.keys() | answer.keys() | after.keys()):
        if key not in answer:
            yield f"not sent: {key}"
        elif key not in before or key not in after:
            yield f"not in /metrics: {key}"
        else:
            low, high = sorted((before[key], after[key]))
            if not low <= answer[key] <= high and not UNSTEADY.match(key[0]):
                yield f"{key} is {answer[key]}, in /metrics {before[key]} and then {after[key]}"


def compare():
    before = scrape()
    time.sleep(SETTLES)
    with open(BACKENDS, encoding="ascii") as file:
        backends = [line.split()[:2] for line in file]
    answers = {name: ask(address) for name, address in backends}
    after = scrape()
    wrong = [f"{name}: {what}" for name, answer in answers.items() for what in differences(before, answer, after)]
    return before, answers, wrong


# Something may still be going on at the first look.
for _ in range(4):
    shown, answers, wrong = compare()
    if not wrong:
        break
if wrong:
    sys.exit(f"{len(wrong)} differences\n" + "\n".join(wrong[:30]))
of_gone = [key for key in shown if ("session", GONE) in key[1]]
assert not of_gone, of_gone
names = {name for name, _ in shown}
exact = sum(1 for key in shown if not UNSTEADY.match(key[0]))
assert len(names) > 100, len(names)
print(f"{len(shown)} series of {len(names)} names are the same in {', '.join(answers)}; {exact} of them in value")
