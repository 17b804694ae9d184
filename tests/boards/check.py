#!/usr/bin/env python3
"""Checks grafana/: the boards' form, that what they ask for exists, and, given an exporter, that every query of every panel
returns data.

Argument: the exporter's binary; without it only what needs no server is checked. With it, what `replay` makes of recorded
files is loaded into a real Prometheus, and every query asked (answers.py). Needs prometheus and promtool on the PATH, and
PyYAML.
"""

import json
import pathlib
import re
import subprocess
import sys
import urllib.parse

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "tests/rules"), str(HERE)]
import answers  # noqa: E402
import lint  # noqa: E402

UIDS = {
    "needs-you.json": "agent-session-needs-you", "session.json": "agent-session", "fleet.json": "agent-session-fleet",
    "orchestration.json": "agent-session-orchestration", "exporter.json": "agent-session-exporter",
}
# Families with one series for one thing at a time, or with those that do not hold at 0.
ONE_HOT = "agent_session_state|agent_session_state_reason|agent_orchestration_state|agent_orchestration_spec_state|agent_orchestration_spec_error"


# === What needs no server ===


def panels(board):
    """Panels of a board, those in rows as well."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", [])


def families():
    """What may be asked for: documented families with their labels, and Prometheus' own series of alerts. Recorded rules may
    not: promtool would make them of loaded history too, but of alerts' expressions as well."""
    known = lint.families()
    for name, (kind, labels) in list(known.items()):
        if kind == "histogram":
            known[f"{name}_bucket"] = ("counter", labels | {"le"})
    alert = lint.IDENTITY | {"category"}
    alerts = {"ALERTS": ("gauge", alert | {"alertstate"}), "ALERTS_FOR_STATE": ("gauge", alert)}
    return known | alerts, set(alerts)


def check_query(where, panel, target, known, others, vocabulary):
    """Names and labels of a query, and the ways in which it may put series together."""
    expr = answers.with_values(target["expr"])
    before = len(lint.problems)
    lint.check_expression(where, expr, known, others, vocabulary)
    # Boards show what alerts may not depend on; how, is looked at below.
    lint.problems[before:] = [p for p in lint.problems[before:] if "joins on agent_session_info" not in p]
    if re.search(r"\bgroup_(left|right)\b", expr):
        lint.fail(where, "joins, which may multiply; match with `and`")
    for name, tail in re.findall(rf"\b({ONE_HOT})\{{[^}}]*\}}(.{{0,5}})", expr):
        if tail != " == 1":
            lint.fail(where, f"{name} is not compared with 1")
    if re.search(r"\bjob\s*[=!]", expr) or re.search(r'\binstance\s*[=!]', expr.replace('instance=~".*"', "")):
        lint.fail(where, "asks for a job or an instance")
    named = [name for name in known if re.search(rf"(?<![\w:]){name}(?![\w:])", expr)]
    labels = set().union({"job", "instance"}, *(known[name][1] for name in named))
    kept = re.findall(r"\b(?:by|on) \(([^)]*)\)", expr)
    used = {label for group in kept for label in re.findall(r"\w+", group)} | set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
    if used - labels:
        lint.fail(where, f"no family of the query has {sorted(used - labels)}")
    if target["datasource"] != panel["datasource"]:
        lint.fail(where, "the query's data source is not the panel's")
    if panel["type"] == "table" and not target["instant"]:
        lint.fail(where, "a table of a range")


def check_table(where, panel, known):
    """Columns that a table styles or links are those its queries give."""
    named = {n: known[n][1] for n in known for t in panel["targets"] if re.search(rf"(?<![\w:]){n}(?![\w:])", t["expr"])}
    organize = next(c["options"] for c in panel["transformations"] if c["id"] == "organize")
    columns = set(organize["renameByName"].values()).union({"job", "instance"}, *named.values())
    placed = {organize["renameByName"].get(c, c) for c in organize["indexByName"]}
    sorted_by = {s["displayName"] for s in panel["options"].get("sortBy", [])}
    if placed - columns or sorted_by - columns:
        lint.fail(where, f"has no columns {sorted((placed | sorted_by) - columns)}")
    for override in panel["fieldConfig"]["overrides"]:
        column = override["matcher"]["options"]
        if column not in columns:
            lint.fail(where, f"has no column {column}")
        for link in (v for p in override["properties"] if p["id"] == "links" for v in p["value"]):
            for field in re.findall(r"__data\.fields\.(\w+)", link["url"]):
                if field not in columns:
                    lint.fail(where, f"a link needs {field}, which is no column")
            uid = re.match(r"/d/([\w-]+)", link["url"])
            if uid and uid[1] not in UIDS.values():
                lint.fail(where, f"a link leads to no board: {link['url']}")


def check_places(where, board):
    """No two panels lie on each other, none hangs over the edge."""
    taken = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        if place["x"] < 0 or place["w"] < 1 or place["h"] < 1 or place["x"] + place["w"] > 24:
            lint.fail(where, f"{panel['title']} hangs over the edge")
        for cell in ((x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])):
            other = taken.setdefault(cell, panel["title"])
            if other != panel["title"]:
                lint.fail(where, f"{panel['title']} lies on {other}")
                break


def check_board(file, board, known, others, vocabulary):
    """Form and queries of a board; returns its queries."""
    queries = []
    if board["uid"] != UIDS.get(file):
        lint.fail(file, f"its uid is {board['uid']}")
    variables = {v["name"]: v for v in board["templating"]["list"]}
    if variables.get("datasource", {}).get("type") != "datasource":
        lint.fail(file, "has no variable for the data source")
    ids = [panel["id"] for panel in panels(board)]
    if len(ids) != len(set(ids)):
        lint.fail(file, "two panels have one id")
    check_places(file, board)
    for panel in panels(board):
        if panel["type"] == "row":
            continue
        where = f"{file}: {panel.get('title')}"
        if not panel.get("title") or not panel.get("description"):
            lint.fail(where, "has no title or no description")
        if panel["datasource"]["uid"] != "${datasource}":
            lint.fail(where, "does not take the chosen data source")
        if panel["type"] in ("timeseries", "stat") and not panel["fieldConfig"]["defaults"].get("unit"):
            lint.fail(where, "has no unit")
        if panel["type"] != "text" and not panel["targets"]:
            lint.fail(where, "asks for nothing")
        if panel["type"] == "table":
            check_table(where, panel, known)
        for target in panel.get("targets", []):
            check_query(where, panel, target, known, others, vocabulary)
            unknown = set(re.findall(r"\$(\w+)", target["expr"])) - set(variables) - {"__rate_interval", "__range"}
            if unknown:
                lint.fail(where, f"there is no variable {sorted(unknown)}")
            queries.append((where, target))
    for variable in variables.values():
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+)(?:\{(.*)\})?, (\w+)\)", variable["query"]["query"])
            if not asked or asked[1] not in known or asked[3] not in known[asked[1]][1] | {"instance"}:
                lint.fail(file, f"the variable {variable['name']} asks for what does not exist")
            else:
                queries.append((f"{file}: ${variable['name']}", {"values": asked[3], "expr": f"{asked[1]}{{{asked[2] or ''}}}"}))
    return queries


def check_links(boards):
    """What links to boards sets are variables of those boards: links of alerts and of rows."""
    texts = [(f, (lint.ALERTS / f).read_text()) for f in lint.RULES] + [(f, json.dumps(b)) for f, b in boards.items()]
    variables = {b["uid"]: {v["name"] for v in b["templating"]["list"]} for b in boards.values()}
    for where, text in texts:
        for uid, asked in re.findall(r"/d/([\w-]+)([^'\"]*)", text):
            lacking = set(re.findall(r"\bvar-(\w+)=", asked)) - variables.get(uid, set())
            if lacking:
                lint.fail(where, f"a link sets {sorted(lacking)}, which {uid} does not have")


def links_of(panel, column):
    """Where the cells of a column lead."""
    overrides = (o for o in panel["fieldConfig"]["overrides"] if o["matcher"]["options"] == column)
    return [v["url"] for o in overrides for p in o["properties"] if p["id"] == "links" for v in p["value"]]


def check_features(boards):
    """What the boards are for is on them."""
    def named(file, title, kind):
        found = [p for p in panels(boards[file]) if p.get("title") == title and p["type"] == kind]
        if len(found) != 1:
            lint.fail(file, f"has no {kind} {title}")
        return found

    def expect(where, holds, problem):
        if not holds:
            lint.fail(where, problem)

    for title, column in (("Needs you now", "Waiting"), ("Alive but no progress", "Without progress"), ("Open alerts", "Since")):
        for panel in named("needs-you.json", title, "table"):
            by = panel["options"].get("sortBy")
            expect(title, by == [{"displayName": column, "desc": True}], "does not begin with the longest")
            columns = panel["transformations"][-1]["options"]
            expect(title, column in columns["renameByName"].values(), f"has no column {column}")
    for file, title in (("session.json", "State"), ("orchestration.json", "State")):
        for panel in named(file, title, "state-timeline"):
            text = panel["targets"][0]["expr"]
            codes = {m["text"] for v in panel["fieldConfig"]["defaults"]["mappings"] for m in v["options"].values()}
            expect(f"{file}: {title}", codes == set(re.findall(r'state="(\w+)"', text)), "names other states than it asks for")
    for panel in named("session.json", "Open step", "table"):
        expect("Open step", "step" in panel["transformations"][-1]["options"]["indexByName"], "does not show the step's name")
    for file in ("needs-you.json", "session.json", "orchestration.json"):
        for panel in named(file, "Open alerts", "table"):
            numbers = {n for url in links_of(panel, "alertname") for n in re.findall(r"viewPanel=(\d+)", url)}
            runbook = {str(p["id"]) for p in panels(boards["needs-you.json"]) if p["title"] == "Runbook"}
            expect(f"{file}: Open alerts", numbers == runbook, "does not lead to the runbook")
    for file, title in (("needs-you.json", "Needs you now"), ("needs-you.json", "Alive but no progress"), ("session.json", "Now")):
        for panel in named(file, title, "table"):
            expect(title, links_of(panel, "url") == ["${__value.raw}"], "does not lead to the agent's own page")
            check_traces(file, panel, "session", boards[file])
    for panel in named("orchestration.json", "Now", "table"):
        check_traces("orchestration.json", panel, "orchestration", boards["orchestration.json"])
    for file in ("needs-you.json", "session.json"):
        lacking = {"datasource", "source", "project", "session"} - {v["name"] for v in boards[file]["templating"]["list"]}
        expect(file, not lacking, f"has no variables {sorted(lacking)}")
    # A point of a histogram leads to the trace of one that lasted so long.
    for file, panel in ((f, p) for f, b in boards.items() for p in panels(b)):
        for target in panel.get("targets", []):
            expect(f"{file}: {panel['title']}", ("_bucket" in target["expr"]) == target.get("exemplar", False), "exemplars are lost")


def check_traces(file, panel, column, board):
    """A row leads to the traces of what it is about, by its id, in the trace store that is chosen."""
    where = f"{file}: {panel['title']}"
    kinds = {v["name"]: v["query"] for v in board["templating"]["list"] if v["type"] == "datasource"}
    urls = [url for url in links_of(panel, column) if url.startswith("/explore?")]
    for url in urls:
        pane = json.loads(urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["panes"][0])["a"]
        asked = pane["queries"][0]
        wanted = f'{{ span.gen_ai.conversation.id = "${{__data.fields.{column}:percentencode}}" }}'
        if (asked["queryType"], asked["query"]) != ("traceql", wanted):
            lint.fail(where, f"asks for other traces than those of its {column}")
        if {pane["datasource"], asked["datasource"]["uid"]} != {"${traces}"} or kinds.get("traces") != "tempo":
            lint.fail(where, "does not look for traces in the store that is chosen")
    if len(urls) != 1:
        lint.fail(where, "does not lead to traces")


def check_provisioning():
    """What Grafana is given beside the boards."""
    sources = yaml.safe_load((ROOT / "grafana/provisioning/datasources/agent-sessions.yml").read_text())
    if {s["type"] for s in sources["datasources"]} != {"prometheus", "alertmanager"} or sources["apiVersion"] != 1:
        lint.fail("provisioning", "data sources are not Prometheus and Alertmanager")
    traces = yaml.safe_load((lint.ALERTS / "compose/tempo-datasource.yml").read_text())["datasources"]
    prometheus = next(s for s in sources["datasources"] if s["type"] == "prometheus")
    led = [d.get("datasourceUid") for d in prometheus["jsonData"].get("exemplarTraceIdDestinations", [])]
    if led != [s["uid"] for s in traces] or prometheus["jsonData"]["exemplarTraceIdDestinations"][0]["name"] != "trace_id":
        lint.fail("provisioning", "exemplars do not lead to the trace store")
    providers = yaml.safe_load((ROOT / "grafana/provisioning/dashboards/agent-sessions.yml").read_text())
    if [p["folder"] for p in providers["providers"]] != [""] or providers["apiVersion"] != 1:
        lint.fail("provisioning", "boards do not go to the default folder")


def main():
    fresh = subprocess.run([sys.executable, str(ROOT / "grafana/build.py"), "--check"], stdout=subprocess.DEVNULL)
    if fresh.returncode:
        lint.fail("grafana", "boards are stale")
    known, others = families()
    vocabulary = lint.words()
    files = sorted((ROOT / "grafana/dashboards").glob("*.json"))
    if {path.name for path in files} != set(UIDS):
        lint.fail("grafana", f"the boards are {[path.name for path in files]}")
    boards = {path.name: json.loads(path.read_text()) for path in files}
    queries = [q for file, board in boards.items() for q in check_board(file, board, known, others, vocabulary)]
    check_links(boards)
    check_features(boards)
    check_provisioning()
    count = sum(panel["type"] != "row" for board in boards.values() for panel in panels(board))
    said = f"{len(boards)} boards, {count} panels, {len(queries)} queries"
    if len(sys.argv) > 1 and not lint.problems:
        tables = [(f"{f}: {p['title']}", p) for f, board in boards.items() for p in panels(board) if p["type"] == "table"]
        live, (slowest, where) = answers.check_answers(sys.argv[1], tables, queries, known)
        if not lint.problems:
            said += f", all with data ({live} of them from a scrape, the rest from replay), the slowest in {slowest * 1000:.0f} ms ({where})"
    for problem in lint.problems:
        print(f"boards: {problem}", file=sys.stderr)
    print(f"boards: {said}, {len(lint.problems)} problems")
    return 1 if lint.problems else 0


if __name__ == "__main__":
    sys.exit(main())
