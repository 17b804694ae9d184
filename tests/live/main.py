"""Runs scenarios and the proof of passivity, the agents side by side. Arguments: see --help."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from agents import AGENTS, binaries
from exporter import Exporter, Failed, names
from passive import prove
from process import end_all
from scenarios import ALL
from world import World

PRINT = threading.Lock()

# Seconds after which the whole is given up; it takes a tenth of it.
LIMIT = 900

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)

# Words of prompts, commands, questions and names of files that the scenarios use.
CONTENT = ("calc.py", "unittest", "Fix add", "time.sleep", "Which one", "sandbox.", "Add was fixed")


class Bench:
    """What all scenarios need to know."""

    def __init__(self, exporter, tools, folder):
        self.exporter = exporter
        self.binaries = binaries(tools)
        self.folder = folder
        self.sources = sources(exporter)

    def config(self, agent, thresholds):
        """Only the agent's source runs: servers of this machine are none of this test's business."""
        tables = [f"[thresholds]\n{thresholds}\n"]
        for source in self.sources:
            if source == agent.source:
                tables.append(f"[sources.{source}]\n{agent.exporter_config()}")
            else:
                tables.append(f"[sources.{source}]\nenabled = false\n")
        return "\n".join(tables)


def documentation(exporter, what):
    return subprocess.run([exporter, "docs", what], capture_output=True, text=True, check=True).stdout


def sources(exporter):
    return re.findall(r"^#?\[sources\.(\w+)\]", documentation(exporter, "config"), re.MULTILINE)


def check_names(bench):
    """Every family that is expected, also one that is expected to be absent, has to exist."""
    known = set(re.findall(r"^\| `(\w+)`", documentation(bench.exporter, "metrics"), re.MULTILINE))
    lists = [each for scenario in ALL for phase in scenario.phases for each in (phase.expect, *phase.also.values())]
    unknown = set().union(*(names(each) for each in lists)) - known
    if unknown:
        raise Failed(f"no such families: {sorted(unknown)}")


def check_agent(name, bench):
    """The agent's version; whatever hinders it from running ends the test."""
    if name not in bench.sources:
        raise Failed(f"this exporter has no source {name}: it knows {', '.join(bench.sources)}")
    # Without the user's home: an agent that only tells its version may already write there.
    env = {"PATH": os.environ["PATH"], "HOME": str(bench.folder / "nobody")}
    told = subprocess.run([bench.binaries[name], "--version"], capture_output=True, text=True, timeout=60, env=env)
    if told.returncode != 0:
        raise Failed(f"{bench.binaries[name]} does not run: {told.stderr}")
    return told.stdout.strip()


def run_scenario(name, scenario, bench):
    world = World(bench.folder / f"{name}-{scenario.name}")
    kind = AGENTS[name]
    model = agent = exporter = None
    try:
        model = kind.model_kind([])
        agent = kind(world, bench.binaries[name], model)
        model.script = scenario.script(agent)
        agent.launch(scenario.interactive)
        exporter = Exporter(bench.exporter, world, name, bench.config(agent, scenario.thresholds))
        exporter.await_source(agent)
        agent.start(scenario.prompt, scenario.interactive)
        for phase in scenario.phases:
            if phase.do:
                getattr(agent, phase.do)()
            exporter.await_all(phase.expect + phase.also.get(name, []), phase.within, agent)
        if found := exporter.leaks(CONTENT):
            raise Failed(f"content left the exporter: {found}")
        if agent.is_server and agent.proxy.offences():
            raise Failed(f"the exporter asked for more than it may: {agent.proxy.offences()}")
        if agent.strayed():
            raise Failed(f"the agent wanted to leave this machine: {agent.strayed()}")
    except Exception as error:
        parts = [str(error) if isinstance(error, Failed) else traceback.format_exc()]
        if agent:
            parts.append(f"--- the agent's output\n{agent.tail()}")
        if model:
            parts.append(f"--- the model answered {len(model.bodies)} requests; others: {model.others}")
        if exporter:
            parts.append(f"--- the exporter's log\n{exporter.process.tail()}")
            parts.append(f"--- what it lists\n{exporter.fetch('/api/v1/sessions')}")
        raise Failed("\n".join(parts)) from error
    finally:
        for each in (agent, exporter, model, world):
            if each:
                each.close()


def run_agent(name, only, bench):
    """All that concerns one agent, one after the other. Answers how many steps failed."""
    failures = 0

    def step(what, action):
        nonlocal failures
        begun = time.monotonic()
        try:
            told = action() or ""
            text = f"ok    {name:<12} {what:<12} {time.monotonic() - begun:5.1f} s  {told}"
        except Exception as error:
            failures += 1
            detail = str(error) if isinstance(error, Failed) else traceback.format_exc()
            text = f"FAIL  {name:<12} {what:<12} {time.monotonic() - begun:5.1f} s\n{detail}"
        with PRINT:
            print(text, flush=True)
        return failures

    if step("version", lambda: check_agent(name, bench)):
        return failures
    for scenario in ALL:
        if name in scenario.agents and (not only or scenario.name in only):
            step(scenario.name, lambda scenario=scenario: run_scenario(name, scenario, bench))
    if not only or "passive" in only:
        step("passive", lambda: prove(name, bench))
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exporter", type=pathlib.Path, help="the exporter's binary")
    parser.add_argument("tools", type=pathlib.Path, help="the folder with the agents' node_modules")
    parser.add_argument("--agent", action="append", choices=AGENTS, help="only this agent (repeatable)")
    parser.add_argument("--scenario", action="append", help="only this scenario, or `passive` (repeatable)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all scenarios")
    options = parser.parse_args()
    agents = options.agent or list(AGENTS)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="live-"))

    def leave(code):
        end_all()
        if options.keep:
            print(f"everything is in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
        os._exit(code)  # Threads that still wait for an agent have nothing left to wait for.

    def interrupted(number, _):
        # A second signal would come in the middle of ending things, and wait for locks that the first one holds.
        for each in ENDINGS:
            signal.signal(each, signal.SIG_IGN)
        print(f"real agents: ended by {signal.Signals(number).name}", file=sys.stderr)
        leave(128 + number)

    for number in ENDINGS:
        signal.signal(number, interrupted)
    signal.alarm(LIMIT)
    try:
        bench = Bench(options.exporter.resolve(), options.tools.resolve(), folder)
        check_names(bench)
        with concurrent.futures.ThreadPoolExecutor(len(agents)) as pool:
            failed = sum(pool.map(lambda name: run_agent(name, options.scenario, bench), agents))
        print(f"real agents: {failed} failed" if failed else "real agents: all passed")
        leave(1 if failed else 0)
    except Exception:
        traceback.print_exc()
        leave(1)


if __name__ == "__main__":
    main()
