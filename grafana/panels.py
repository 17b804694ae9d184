"""What panels of Grafana's boards are made of: queries in, JSON out. Only what all boards share; boards.py says what they show."""

import json
import re
import urllib.parse

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Of a current Grafana; newer ones migrate by themselves.
SCHEMA_VERSION = 41
WIDTH = 24

SESSION = 'source=~"$source",project=~"$project",session=~"$session"'
PROJECT = 'source=~"$source",project=~"$project"'
SOURCE = 'source=~"$source"'
RUN = 'source=~"$source",project=~"$project",orchestration=~"$orchestration"'
INSTANCE = 'instance=~"$instance"'
# Two exporters that see one session give one row; everything else in a row is about the session as well.
ONE = "source, project, session"
ONE_RUN = "source, project, orchestration"

STATES = {
    "queued": "#8ab8ff", "running": "blue", "progressing": "green", "waiting_for_user": "orange", "stalled": "red",
    "blocked": "purple", "completed": "dark-green", "failed": "dark-red", "cancelled": "#8e8e8e", "unknown": "#5a5a5a",
}
RUN_STATES = {
    "idle": "#8ab8ff", "running": "blue", "completed": "dark-green", "failed": "dark-red", "stopped": "#8e8e8e",
    "unknown": "#5a5a5a",
}
UIDS = {
    "needs": "agent-session-needs-you", "session": "agent-session", "fleet": "agent-session-fleet",
    "orchestration": "agent-session-orchestration", "exporter": "agent-session-exporter",
}
# The panel that holds the runbook's text, on the first board.
RUNBOOK_PANEL = 1000


# === Links ===


def board_link(title, board, *fields):
    """A link from a row to a board about what the row is about."""
    asked = "".join(f"&var-{field}=${{__data.fields.{field}:percentencode}}" for field in fields)
    url = f"/d/{UIDS[board]}?var-datasource=${{datasource:percentencode}}{asked}&${{__url_time_range}}"
    return {"title": title, "url": url, "targetBlank": False}


def traces_link(field):
    """A link from a row to its runs' traces, in whichever trace store is chosen."""
    source = {"type": "tempo", "uid": "${traces}"}
    asked = f'{{ span.gen_ai.conversation.id = "${{__data.fields.{field}:percentencode}}" }}'
    search = {"refId": "A", "datasource": source, "queryType": "traceql", "query": asked}
    pane = {"datasource": "${traces}", "queries": [search], "range": {"from": "${__from}", "to": "${__to}"}}
    text = urllib.parse.quote(json.dumps({"a": pane}, separators=(",", ":")), safe=".:,")
    # What Grafana puts in is no part of the address yet.
    text = re.sub(r"%24%7B([\w.:]+)%7D", r"${\1}", text)
    return {"title": "Its traces", "url": f"/explore?schemaVersion=1&panes={text}", "targetBlank": False}


SESSION_LINK = board_link("The session's board", "session", "source", "project", "session")
RUN_LINK = board_link("The orchestration's board", "orchestration", "source", "project", "orchestration")
RUNBOOK_LINK = {"title": "The runbook", "url": f"/d/{UIDS['needs']}?viewPanel={RUNBOOK_PANEL}", "targetBlank": False}
PAGE_LINK = {"title": "The agent's own page", "url": "${__value.raw}", "targetBlank": True}
LINKS = {
    "session": [SESSION_LINK, traces_link("session")], "orchestration": [RUN_LINK, traces_link("orchestration")],
    "alertname": [RUNBOOK_LINK], "url": [PAGE_LINK],
}


# === Queries ===


def coded(metric, selector, by, states):
    """One number per object for the state that holds, from 1; mapped back to words by `codes`."""
    parts = [f'max by ({by}) ({metric}{{{selector},state="{s}"}} == 1) * {n}' for n, s in enumerate(states, 1)]
    return "\n  or ".join(parts)


def codes(states):
    """The words and colours of `coded`."""
    options = {str(n): {"text": s, "color": c, "index": n} for n, (s, c) in enumerate(states.items(), 1)}
    return [{"type": "value", "options": options}]


def words(colours):
    """Colours for words in a cell."""
    options = {word: {"text": word, "color": colour, "index": n} for n, (word, colour) in enumerate(colours.items())}
    return [{"type": "value", "options": options}]


def target(expr, legend="", letter="A", table=False):
    """A query: over the range for a graph, of the last moment for a table."""
    made = {"refId": letter, "datasource": DATASOURCE, "editorMode": "code", "expr": expr, "instant": table, "range": not table}
    if "histogram_quantile" in expr:
        # Points that lead to the trace of one that lasted so long.
        made["exemplar"] = True
    return made | ({"format": "table"} if table else {"format": "time_series", "legendFormat": legend or "__auto"})


# === Panels ===


def panel(kind, title, about, targets, size, unit=None, defaults=None, options=None, overrides=(), changes=()):
    """Any panel; `size` is width and height, the place is found by `board`."""
    made = {
        "type": kind, "title": title, "description": about, "datasource": DATASOURCE,
        "gridPos": {"h": size[1], "w": size[0], "x": 0, "y": 0},
        "fieldConfig": {"defaults": ({"unit": unit} if unit else {}) | (defaults or {}), "overrides": list(overrides)},
        "options": options or {}, "targets": targets,
    }
    return made | ({"transformations": list(changes)} if changes else {})


def steps(*pairs):
    """Thresholds: colours from values on; the first holds below all."""
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in pairs]}


def stat(title, about, expr, unit="short", bad=None, size=(4, 4), mappings=None, legend=""):
    """One number, coloured from `bad` on; with a legend one number for each series."""
    colours = steps((None, "green"), (bad[0], bad[1])) if bad else steps((None, "blue"))
    defaults = {"thresholds": colours, "color": {"mode": "thresholds"}} | ({"mappings": mappings} if mappings else {})
    options = {
        "colorMode": "value", "graphMode": "area", "justifyMode": "auto", "orientation": "auto",
        "textMode": "value_and_name" if legend else "auto", "wideLayout": True,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return panel("stat", title, about, [target(expr, legend)], size, unit, defaults, options)


def graph(title, about, queries, unit="short", size=(12, 8), stack=False, top=None):
    """Lines over time; `queries` are pairs of a query and its legend."""
    targets = [target(expr, legend, chr(65 + n)) for n, (expr, legend) in enumerate(queries)]
    custom = {
        "drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if stack else 5, "showPoints": "never", "spanNulls": False,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
    }
    defaults = {"custom": custom, "color": {"mode": "palette-classic"}, "min": 0} | ({"max": top} if top else {})
    options = {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, about, targets, size, unit, defaults, options)


def timeline(title, about, expr, legend, states, size=(24, 8)):
    """A bar for each object, coloured by the state that held."""
    custom = {"fillOpacity": 80, "lineWidth": 0}
    defaults = {"custom": custom, "mappings": codes(states), "color": {"mode": "thresholds"}, "thresholds": steps((None, "text"))}
    options = {
        "mergeValues": True, "showValue": "auto", "alignValue": "left", "rowHeight": 0.9,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel("state-timeline", title, about, [target(expr, legend)], size, None, defaults, options)


def table(title, about, queries, order, size=(24, 8), sort=None, units=None, colours=None):
    """A row for each object, from queries that have its labels in common.

    `queries`: pairs of a query and the title of its value, None where only its labels count. `order`: columns from the
    left, labels by their names. `sort`: the column sorted by, largest first.
    """
    many = len(queries) > 1
    targets = [target(expr, letter=chr(65 + n), table=True) for n, (expr, _) in enumerate(queries)]
    values = {f"Value #{chr(65 + n)}" if many else "Value": name for n, (_, name) in enumerate(queries)}
    named = {value: name for value, name in values.items() if name}
    places = {next((value for value, name in named.items() if name == column), column): n for n, column in enumerate(order)}
    hidden = {"Time": True} | {value: True for value, name in values.items() if not name}
    # Where all other queries return nothing, Grafana leaves the letter out.
    named, hidden = ({"Value": queries[0][1]} | named, hidden) if queries[0][1] else (named, {"Value": True} | hidden)
    changes = ([{"id": "merge", "options": {}}] if many else []) + [
        {"id": "organize", "options": {"excludeByName": hidden, "indexByName": places, "renameByName": named}}
    ]
    overrides = []
    for column in order:
        properties = []
        if column in (units or {}):
            properties.append({"id": "unit", "value": units[column]})
        if column in LINKS:
            properties.append({"id": "links", "value": LINKS[column]})
        if column in (colours or {}):
            properties += [
                {"id": "mappings", "value": words(colours[column])},
                {"id": "custom.cellOptions", "value": {"type": "color-text"}},
            ]
        if properties:
            overrides.append({"matcher": {"id": "byName", "options": column}, "properties": properties})
    options = {"showHeader": True, "cellHeight": "sm"} | ({"sortBy": [{"displayName": sort, "desc": True}]} if sort else {})
    defaults = {"custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True}}
    return panel("table", title, about, targets, size, None, defaults, options, overrides, changes)


def note(title, about, text, size=(24, 8), number=None):
    """A panel of Markdown."""
    made = panel("text", title, about, [], size, options={"mode": "markdown", "content": text})
    del made["targets"]
    return made | ({"id": number} if number else {})


def row(title):
    """A heading."""
    return {"type": "row", "title": title, "collapsed": False, "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": 0}, "panels": []}


# === Boards ===


def variable(name, query, label):
    """A variable with the values of a label; all of them by default."""
    return {
        "type": "query", "name": name, "label": label, "datasource": DATASOURCE, "hide": 0,
        "query": {"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"}, "refresh": 2, "regex": "", "sort": 1,
        "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}, "options": [],
        "skipUrlSync": False,
    }


def placed(panels):
    """Panels from left to right, a new line where one does not fit."""
    x = y = height = 0
    for number, made in enumerate(panels, 1):
        place = made["gridPos"]
        if x + place["w"] > WIDTH:
            x, y, height = 0, y + height, 0
        place["x"], place["y"] = x, y
        x, height = x + place["w"], max(height, place["h"])
        made.setdefault("id", number)
    return panels


def board(uid, title, about, variables, panels):
    """A whole board."""
    chosen, traces = (
        {
            "type": "datasource", "name": name, "label": label, "query": kind, "hide": 0, "refresh": 1, "regex": "",
            "multi": False, "includeAll": False, "options": [], "skipUrlSync": False,
        }
        for name, label, kind in (("datasource", "Prometheus", "prometheus"), ("traces", "Traces", "tempo"))
    )
    # Only where something leads to traces.
    sources = [chosen, traces] if "${traces}" in json.dumps(panels) else [chosen]
    links = {
        "type": "dashboards", "title": "Agent sessions", "tags": ["agent-sessions"], "asDropdown": False, "includeVars": True,
        "keepTime": True, "targetBlank": False, "icon": "external link", "tooltip": "", "url": "",
    }
    return {
        "uid": uid, "title": title, "description": about, "tags": ["agent-sessions"], "schemaVersion": SCHEMA_VERSION,
        "editable": True, "graphTooltip": 1, "timezone": "browser", "refresh": "30s", "time": {"from": "now-6h", "to": "now"},
        "timepicker": {}, "fiscalYearStartMonth": 0, "annotations": {"list": []}, "links": [links],
        "templating": {"list": [*sources, *variables]}, "panels": placed(panels),
    }
