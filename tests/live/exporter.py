"""The exporter under test: started on a free port, asked over HTTP, and judged by expectations that are plain text.

An expectation is `left op right`. On the left stands either a sample, as `name{label="value"}`, of which the sum over
all that match counts (absent samples are `none`), or a field of the status answer, as `status.calls.total`. `op` is one
of `== != >= <= > <`, and the right side is a JSON value or `none`.
"""

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request

from process import Running

SAMPLE = re.compile(r'^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
EXPECTATION = re.compile(r"^(.+?) (==|!=|>=|<=|>|<) (.+)$")


class Failed(Exception):
    """A scenario did not end as it should; the text says what was seen instead."""


class Exporter:
    def __init__(self, binary, world, source, config):
        self.source = source
        self.world = world
        path = world.folder / "exporter.toml"
        path.write_text(config)
        self.port = world.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        argv = [binary, "--home", world.home, "--state-dir", world.folder / "state", "--config.file", path]
        argv += ["--series", "all", "--web.listen-address", f"127.0.0.1:{self.port}"]
        # The exporter gets no environment of the agent, so nothing tells it where things are but its flags.
        env = {"PATH": "/usr/bin:/bin", "HOME": str(world.folder / "nobody")}
        self.process = Running([str(each) for each in argv], world.folder / "exporter.log", env, world.folder)
        until(20, self.process, lambda: self.fetch("/-/ready") is not None, "the exporter is ready")

    def fetch(self, path):
        """The body of an answer, or nothing where it is an error or there is none."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.read().decode()
        except (OSError, urllib.error.HTTPError):
            return None

    def samples(self):
        found = []
        for line in (self.fetch("/metrics") or "").splitlines():
            match = SAMPLE.match(line)
            if match and not line.startswith("#"):
                found.append((match[1], dict(LABEL.findall(match[2] or "")), float(match[3])))
        return found

    def status(self):
        """The status of the only root session of the source."""
        listed = json.loads(self.fetch(f"/api/v1/sessions?source={self.source}") or '{"sessions": []}')["sessions"]
        if not listed:
            return None
        if len(listed) > 1:
            raise Failed(f"{len(listed)} sessions where the agent has one: {[each['sessionId'] for each in listed]}")
        session = urllib.parse.quote(listed[0]["sessionId"], safe="")
        return json.loads(self.fetch(f"/api/v1/sessions/{self.source}/{session}/status") or "null")

    def explain(self):
        status = self.status()
        if not status:
            return "no session"
        session = urllib.parse.quote(status["sessionId"], safe="")
        return self.fetch(f"/api/v1/sessions/{self.source}/{session}/explain") or "no explanation"

    def await_all(self, expectations, seconds, agent=None):
        """Polls until one scrape and one answer fulfil all expectations."""
        end = time.monotonic() + seconds
        while True:
            samples, status = self.samples(), self.status()
            seen = [(text, *judge(text, self.source, samples, status)) for text in expectations]
            if all(fulfilled for _, fulfilled, _ in seen):
                return
            if self.process.ended():
                raise Failed("the exporter ended")
            if time.monotonic() > end:
                lines = [f"    {'ok  ' if ok else 'FAIL'} {text}   (seen: {value})" for text, ok, value in seen]
                gone = " (the agent has ended)" if agent and agent.ended() else ""
                raise Failed(f"not within {seconds} s{gone}:\n" + "\n".join(lines) + f"\n{self.explain()}")
            time.sleep(0.1)

    def await_source(self, agent):
        """Until a server's source is connected: what happens before is caught up with, but late."""
        if agent.is_server:
            self.await_all(["agent_session_exporter_source_up == 1"], 60, agent)

    def leaks(self, words):
        """Where content shows up, which must stay in: words of the prompt, of commands, of paths."""
        session = urllib.parse.quote((self.status() or {}).get("sessionId", ""), safe="")
        paths = ["/", "/metrics", "/api/v1/sessions"]
        paths += [f"/api/v1/sessions/{self.source}/{session}/{each}" for each in ("status", "explain")]
        places = {path: (self.fetch(path) or "").encode() for path in paths}
        kept = [each for each in (self.world.folder / "state").rglob("*") if each.is_file()]
        places |= {f"state/{each.name}": each.read_bytes() for each in kept}
        places["the log"] = self.process.tail(1_000_000).encode()
        return [f"{word!r} in {place}" for place, text in places.items() for word in words if word.encode() in text]

    def close(self):
        self.process.close()


def names(expectations):
    """The families that expectations are about."""
    lefts = [EXPECTATION.match(text)[1] for text in expectations]
    return {left.partition("{")[0] for left in lefts if not left.startswith("status.")}


def judge(text, source, samples, status):
    left, op, right = EXPECTATION.match(text).groups()
    wanted = None if right == "none" else json.loads(right)
    value = field(left, status) if left.startswith("status.") else total(left, source, samples)
    return compare(value, op, wanted), value


def compare(value, op, wanted):
    if op in ("==", "!="):
        return (value == wanted) == (op == "==")
    if value is None:
        return False
    return {">=": value >= wanted, "<=": value <= wanted, ">": value > wanted, "<": value < wanted}[op]


def field(path, status):
    """A field of the answer; one that the answer never has would be `none` for the wrong reason."""
    value = status
    for part in path.split(".")[1:]:
        if isinstance(value, dict) and part not in value:
            raise Failed(f"the status answer has no field {path}: {sorted(value)}")
        value = value and value[part]
    return value


def total(selector, source, samples):
    name, _, rest = selector.partition("{")
    wanted = dict(LABEL.findall(rest))
    matching = [
        value
        for found, labels, value in samples
        if found == name
        and labels.get("source", source) == source
        and all(labels.get(label) == text for label, text in wanted.items())
    ]
    return sum(matching) if matching else None


def until(seconds, process, condition, what):
    """Polls a condition; a process that ends first, or time that runs out, is a failure."""
    end = time.monotonic() + seconds
    while not condition():
        if process is not None and process.ended():
            raise Failed(f"{what}: its process ended first\n{process.tail()}")
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {what}")
        time.sleep(0.05)
