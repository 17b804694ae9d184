#!/usr/bin/env python3
"""The backtest of the shipped rules. What fired stands in fired.yml: promtool has to find exactly that. Why it is right
stands in reasons.yml, by hand. alerts/BACKTEST.md is made of both. With BLESS=1 fired.yml and the table are written anew.

Arguments: the exporter's binary, the folder of recordings of servers; a third one, for trying things out, takes only cases
with that in their name, and leaves the table alone. Ends with 1 if anything differs or is not right.
"""

import json
import os
import pathlib
import sys
import tempfile

import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
import labelled  # noqa: E402
import made  # noqa: E402
import recorded  # noqa: E402
import table  # noqa: E402
from promtool import ALERTS, Bench, Fired  # noqa: E402

FIRED = HERE / "fired.yml"
REASONS = HERE / "reasons.yml"
TABLE = ALERTS / "BACKTEST.md"


def load_fired():
    read = yaml.safe_load(FIRED.read_text()) if FIRED.exists() else {}
    return {name: [Fired(*fired) for fired in alerts] for name, alerts in (read or {}).items()}


def write_fired(found):
    lines = ["# What fired in each case: alert, severity, category, what it is about, first and last second, scrapes.",
             "# Written by BLESS=1 tests/backtest/run."]
    for name, alerts in sorted(found.items()):
        lines.append(f"{json.dumps(name)}:" + ("" if alerts else " []"))
        lines += [f"  - {json.dumps([getattr(fired, f) for f in Fired.__dataclass_fields__])}" for fired in alerts]
    FIRED.write_text("\n".join(lines) + "\n")


def differences(expected, found):
    for name in sorted(expected.keys() | found.keys()):
        was, now = set(expected.get(name, [])), set(found.get(name, []))
        if name not in found or name not in expected:
            yield f"{name}: {'no such case any more' if name not in found else 'a new case'}"
        for sign, alerts in (("-", was - now), ("+", now - was)):
            yield from (f"{name}: {sign} {fired.alert} ({fired.severity}) {fired.of}: {fired.first} s to {fired.last} s, "
                        f"{fired.scrapes} scrapes" for fired in sorted(alerts))


def main():
    # Each case is played in a folder of its own.
    binary, recordings = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    bless = bool(os.environ.get("BLESS")) and not only
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        judged = [(case, moment) for case, moment in labelled.cases(folder) if only in case.name]
        others = [*made.cases(folder), labelled.left_open(folder), *recorded.cases(folder, recordings)]
        others = [case for case in others if only in case.name]
        expected = {name: fired for name, fired in load_fired().items() if only in name}
        played, found, refused = Bench(binary, folder).all([case for case, _ in judged] + others, None if bless else expected)
    problems = [f"{name}: {why}" for name, why in refused.items() if "nothing in these files has a time" not in why]
    moments = [(moment, found[case.name]) for case, moment in judged]
    names = [case.name for case in others]
    ends = {one.case.name: one.end for one in played}
    backtest = table.Backtest(moments, {name: found[name] for name in names if name in found}, ends,
                              {name for name in names if name in refused}, yaml.safe_load(REASONS.read_text()))
    if bless:
        write_fired(found)
        TABLE.write_text(backtest.text())
    else:
        problems += differences(expected, found)
    if not only:
        problems += backtest.problems()
        if TABLE.read_text() != backtest.text():
            problems.append("alerts/BACKTEST.md is not what was found: BLESS=1 tests/backtest/run renews it")
    for problem in problems:
        print(f"backtest: {problem}", file=sys.stderr)
    print(f"backtest: {len(judged)} moments of labelled sessions, {len(names)} recordings, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
