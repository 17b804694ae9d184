#!/usr/bin/env python3
"""Writes the boards: dashboards/*.json from boards.py. With --check nothing is written; a stale board is a failure."""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
import boards  # noqa: E402


def main():
    runbook = (HERE.parent / "alerts/RUNBOOK.md").read_text()
    stale = []
    wanted = {f"{name}.json": json.dumps(made, indent=2) + "\n" for name, made in boards.all_boards(runbook).items()}
    for path in (HERE / "dashboards").glob("*.json"):
        if path.name not in wanted:
            stale.append(path.name)
    for name, text in wanted.items():
        path = HERE / "dashboards" / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text)
    if "--check" in sys.argv and stale:
        print(f"grafana/build.py: run it, these are stale: {' '.join(sorted(stale))}", file=sys.stderr)
        return 1
    print(f"boards: {len(wanted)} are fresh")
    return 0


if __name__ == "__main__":
    sys.exit(main())
