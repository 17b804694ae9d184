#!/usr/bin/env python3
"""Shows that the rule tests hold the rules: changes one number, duration, `for` or condition of one alert at a time and
expects some test to fail. Needs promtool and PyYAML.

Arguments: names of rule files (all by default). Ends with 1 if a change goes unnoticed. Not part of every run: it takes
minutes.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ALERTS = HERE.parent.parent / "alerts"
NUMBER = re.compile(r"(?<![\w.\"|(=])(\d+(?:\.\d+)?)(?![\w.\"\]])")
DURATION = re.compile(r"(?<=\[)\d+[smhd](?=\])|(?<=offset )\d+[smhd]")


def blocks(lines):
    """First and last line, and name, of each rule."""
    starts = [i for i, line in enumerate(lines) if re.match(r"\s+- (alert|record): ", line)]
    for start, end in zip(starts, starts[1:] + [len(lines)]):
        yield start, end, lines[start].split(": ")[1]


def number_changes(text):
    """A share a tenth more and less, a count by one, seconds by at least one step of the tests."""
    if "." in text:
        yield f"{float(text) * 1.1:.3f}"
        yield f"{float(text) * 0.9:.3f}"
        return
    value = int(text)
    # Conditions "equal to 1" have no numbers.
    step = 0 if value == 1 else 1 if value < 100 else max(15, value // 10)
    if step:
        yield str(value + step)
        yield str(value - step)


def changes(lines):
    """Every changed copy of the lines, with what was changed."""
    for start, end, name in blocks(lines):
        in_expr = False
        for i in range(start, end):
            line = lines[i]
            key = re.match(r"\s+(expr|for|keep_firing_for|labels|annotations|alert|record): ?", line)
            if key or line.strip().startswith("#"):
                in_expr = bool(key) and key.group(1) == "expr"
            if key and key.group(1) in ("for", "keep_firing_for"):
                length = re.search(r"(\d+)m$", line)
                for seconds in (int(length.group(1)) * 60 + 15, int(length.group(1)) * 60 - 15):
                    changed = line[: length.start()] + f"{seconds}s"
                    yield name, f"{line.strip()} -> {seconds}s", lines[:i] + [changed] + lines[i + 1 :]
            if not in_expr:
                continue
            body = line.split("expr: ", 1)[-1]
            base = len(line) - len(body)
            for match in NUMBER.finditer(body):
                for new in number_changes(match.group()):
                    changed = line[: base + match.start()] + new + line[base + match.end() :]
                    yield name, f"{line.strip()} -> {new}", lines[:i] + [changed] + lines[i + 1 :]
            for match in DURATION.finditer(body):
                unit = match.group()[-1]
                # A duration in days is tested in steps of hours.
                for new in (f"{int(match.group()[:-1]) * 2}{unit}", f"{int(match.group()[:-1]) * 30}{ {'m': 's', 'h': 'm', 'd': 'h'}[unit] }"):
                    if unit == "d" and new.endswith("h"):
                        new = f"{int(match.group()[:-1]) * 12}h"
                    changed = line[: base + match.start()] + new + line[base + match.end() :]
                    yield name, f"{line.strip()}: {match.group()} -> {new}", lines[:i] + [changed] + lines[i + 1 :]
            if re.match(r"\s+(and|or|unless) ", line) and line.count("(") == line.count(")"):
                yield name, f"without: {line.strip()}", lines[:i] + lines[i + 1 :]


def passes(path, content):
    """Whether these tests do."""
    path.write_text(yaml.safe_dump(content))
    return subprocess.run(["promtool", "test", "rules", path.name], cwd=path.parent, capture_output=True).returncode == 0


def unnoticed(file, name, what, lines):
    """What no test noticed, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "alerts").mkdir()
        (root / "tests/rules").mkdir(parents=True)
        for rules in ALERTS.glob("*.yml"):
            shutil.copy(rules, root / "alerts")
        (root / "alerts" / file).write_text("\n".join(lines) + "\n")
        if subprocess.run(["promtool", "check", "rules", root / "alerts" / file], capture_output=True).returncode:
            return None  # No rule at all any more.
        # First the tests that name it, where most changes are noticed; then all.
        tests = [(test.name, yaml.safe_load(test.read_text())) for test in sorted(HERE.glob("*.test.yml"))]
        tests = [(test, content) for test, content in tests if f"../../alerts/{file}" in content["rule_files"]]
        for named in (True, False):
            for test, content in tests:
                chosen = [case for case in content["tests"] if (name in json.dumps(case)) == named]
                if chosen and not passes(root / "tests/rules" / test, {**content, "tests": chosen}):
                    return None
    return f"{name}: {what}"


def main():
    files = sys.argv[1:] or ["agent_sessions.yml", "orchestrations.yml", "exporter.yml", "classic.yml"]
    work = [(file, *change) for file in files for change in changes((ALERTS / file).read_text().splitlines())]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        missed = 0
        for one in filter(None, pool.map(lambda change: unnoticed(*change), work)):
            missed += 1
            print(f"no test notices {one}", flush=True)
    print(f"{len(work)} changes, {missed} unnoticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
