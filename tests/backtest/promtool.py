"""Cases through `replay` and `promtool test rules`: which alerts fired, from when to when, for what.

Many cases are one unit test, each as an exporter of its own (`instance`), because promtool takes hardly longer for twenty
than for one. The rules about models look at all exporters at once, so a model's name gets the case's number, too.
"""

import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ALERTS = ROOT / "alerts"
RULES = ("agent_sessions.yml", "orchestrations.yml", "classic.yml")
# What one alert is about, the narrowest first.
ABOUT = ("spec", "orchestration", "session", "model")
LABELS = ("instance", "alertname", "severity", "category", *ABOUT)
# Cases of one unit test.
BATCH = 20
# Alerts that a case leaves behind go on for some minutes.
AFTER_S = 300
SERIES = re.compile(r"      - series: '(\w+)")
RUN = re.compile(r"x(\d+)$")
GOT = re.compile(r"\{([^{}]*)\} ([-+.\deE]+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclasses.dataclass
class Case:
    """A recording, and how it is played."""

    name: str
    # SOURCE:PATH each.
    files: list
    # Seconds between two scrapes.
    step: int = 15
    # As `replay` takes it.
    until: str = "+45m"


@dataclasses.dataclass(frozen=True, order=True)
class Fired:
    """One alert: first and last second in which it fired, counted from the first scrape, and at how many scrapes."""

    alert: str
    severity: str
    category: str
    of: str
    first: int
    last: int
    scrapes: int


@dataclasses.dataclass
class Played:
    """What scrapes of a case would have shown."""

    case: Case
    # Name and values of each series.
    series: list
    scrapes: int
    # What `replay` warned of.
    said: str

    @property
    def end(self):
        """Second of the last scrape."""
        return (self.scrapes - 1) * self.case.step


class Refused(Exception):
    """`replay` or promtool did not do what it was asked for."""


class Bench:
    """Where cases are tried."""

    def __init__(self, binary, folder):
        self.binary = str(pathlib.Path(binary).resolve())
        self.folder = pathlib.Path(folder)
        text = "\n".join((ALERTS / name).read_text() for name in RULES)
        # What no rule reads only takes time.
        self.wanted = set(re.findall(r"\bagent_\w+", text))
        self.config = self.folder / "exporter.toml"
        self.config.write_text("[push]\nallow_builtin_sources = true\n")

    def replay(self, case):
        command = [self.binary, "replay", f"--config.file={self.config}", "--log.level=warn", "--series=all", "--to=unit-test",
                   f"--step={case.step}s", f"--until={case.until}", "--label=job=agent_session_exporter",
                   "--label=instance=replay", *case.files]
        environment = {"HOME": str(self.folder), "PATH": os.environ["PATH"]}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=self.folder)
        if done.returncode:
            raise Refused(f"{case.name}: {done.stderr.strip()}")
        series, scrapes = [], 0
        lines = iter(done.stdout.splitlines())
        for line in lines:
            named = SERIES.match(line)
            if named:
                values = next(lines).split("'")[1]
                scrapes = max(scrapes, length(values))
                if named[1] in self.wanted:
                    series.append((line, values))
        return Played(case, series, scrapes, done.stderr)

    def try_replay(self, case):
        try:
            return self.replay(case)
        except Refused as refused:
            return refused

    def all(self, cases, expected=None):
        """What fired in each case, by name; with `expected`, promtool has to find exactly that, and what it finds else
        comes instead; and the cases that could not be played, with the reason."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            tried = list(pool.map(self.try_replay, cases))
            played = [one for one in tried if isinstance(one, Played)]
            by_step = collections.defaultdict(list)
            for one in sorted(played, key=lambda p: p.scrapes):
                by_step[one.case.step].append(one)
            batches = [some[n:n + BATCH] for some in by_step.values() for n in range(0, len(some), BATCH)]
            found = {}
            for some in pool.map(lambda batch: self.judge(batch, expected), batches):
                found.update(some)
        refused = {case.name: str(one) for case, one in zip(cases, tried) if isinstance(one, Refused)}
        return played, found, refused

    def judge(self, batch, expected):
        """One run of promtool; where it does not find what it should, another one tells what it does find."""
        wanted = None if expected is None else {p.case.name: expected.get(p.case.name, []) for p in batch}
        good, output = self.test(batch, wanted or {})
        if wanted is not None:
            return wanted if good else self.judge(batch, None)
        return found(batch, "" if good else output)

    def test(self, batch, wanted):
        step = batch[0].case.step
        end = max(p.end for p in batch) // step * step + AFTER_S
        over = f'(timestamp(ALERTS{{alertstate="firing"}})[{end + 1}s:{step}s])'
        by = f"by ({', '.join(LABELS)})"
        text = ["rule_files:", *(f"  - '{ALERTS / rule}'" for rule in RULES), f"evaluation_interval: {step}s", "tests:",
                f"  - interval: {step}s", "    input_series:"]
        for n, one in enumerate(batch):
            for series, values in one.series:
                named = series.replace('instance="replay"', f'instance="{n}"').replace(',model="', f',model="{n}: ')
                text += [named.replace('{model="', f'{{model="{n}: '), f"        values: '{values} stale'"]
        text.append("    promql_expr_test:")
        for what, query in (("first", f"min {by} (min_over_time{over})"), ("last", f"max {by} (max_over_time{over})"),
                            ("scrapes", f"sum {by} (count_over_time{over})")):
            text += [f"      - expr: '{query}'", f"        eval_time: {end}s", "        exp_samples:"]
            samples = [f"          - {{labels: '{labels_of(n, fired)}', value: {getattr(fired, what)}}}"
                       for n, one in enumerate(batch) for fired in wanted.get(one.case.name, [])]
            text += samples or ["          []"]
        path = self.folder / f"{re.sub(r'[^a-z0-9]+', '-', batch[0].case.name)}.test.yml"
        path.write_text("\n".join(text) + "\n")
        done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
        path.unlink()
        return done.returncode == 0, done.stdout + done.stderr


def found(batch, output):
    """promtool names what it got where nothing was expected, one list for each of the three questions."""
    fired = {one.case.name: [] for one in batch}
    got = [line.split("got:", 1)[1] for line in output.splitlines() if "got:" in line]
    if not got and not output:
        return fired
    if len(got) != 3:
        raise Refused(f"{batch[0].case.name} and others: promtool says {output}")
    values = [{m[1]: int(float(m[2])) for m in GOT.finditer(line)} for line in got]
    for labels, first in values[0].items():
        named = dict(LABEL.findall(labels))
        kind = next((kind for kind in ABOUT if kind in named), "")
        of = named.get(kind, "")
        of = of.split(": ", 1)[1] if kind == "model" else of
        fired[batch[int(named["instance"])].case.name].append(
            Fired(named["alertname"], named["severity"], named["category"], f"{kind}={of}", first, values[1][labels],
                  values[2][labels]))
    return {name: sorted(alerts) for name, alerts in fired.items()}


def labels_of(n, fired):
    kind, _, of = fired.of.partition("=")
    named = {"instance": n, "alertname": fired.alert, "severity": fired.severity, "category": fired.category}
    if kind:
        named[kind] = f"{n}: {of}" if kind == "model" else of
    return "{" + ", ".join(f'{k}="{v}"' for k, v in named.items()) + "}"


def length(values):
    """Samples of a series in promtool's notation."""
    count = 0
    for token in values.split():
        run = RUN.search(token)
        count += 1 if not run else int(run[1]) + (0 if token.startswith("_") else 1)
    return count
