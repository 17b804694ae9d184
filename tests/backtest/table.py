"""alerts/BACKTEST.md, and what is not right in it."""

import collections
import dataclasses
import re

import yaml

import labelled
from promtool import ALERTS, RULES

CLASSIC = "AgentSessionClassic"
SILENT = "AgentSessionSilent"
UNITS = {"s": 1, "m": 60, "h": 3600}
HEAD = """# Backtest

What the shipped rules say about sessions of which is known what happened: made by `tests/backtest/run` (`BLESS=1` renews
it), which plays each recording through `replay` and hands the result with the rules to `promtool test rules`. In every run
of the tests promtool has to find exactly what stands here. Reasons are written by hand (`tests/backtest/reasons.yml`); an
alert without one fails the tests, and so does a reason without its alert.

Times are minutes and seconds since the first record; a scrape comes every 15 seconds, every minute where a case lasts for
hours. Of classic rules (`classic.yml`, not loaded by default) the names are shortened: NoProgress is
AgentSessionClassicNoProgress.

"""
LABELLED = """## Labelled sessions

26 small sessions with a verdict (`tests/fixtures/labelled`), two of them judged at two moments. What is later than the
moment is not known then; the clock goes on, and nothing more happens.

- **must flag**: an alert of category stuck of severity warning fires at the moment, or begins within its own `for` after it.
  That a session falls silent because its file ends does not count as found.
- **must not flag**: no alert of category stuck, of any severity, up to the moment or within eleven minutes after it (after
  an earlier moment at which the session had to be flagged: none that still fires). AgentSessionSilent may begin after the
  moment: the file ends in the middle of a turn, and of a live session that says no more for ten minutes it would be true.
- No row tells the end of a turn. For case 26, which is idle since last night by its label, one is told.

Each alert with the moment and the call at which it first fired. Every case is played once more without digests of outputs;
where nothing is said about that, the same alerts fired at the same moments.

"""
RECORDED = """## {title}

{text}

"""
ABOUT = {
    "made": ("Honest work", "Work that takes long, as events that an agent would push. Nothing of category stuck may fire, and nothing critical."),
    "labelled": ("A session that just stops", "Case 26 once more, without the end of its turn."),
    "codex": ("Codex", "Rollout files of the real program, and public ones. Locks of live writers are not in files, so nothing is known of processes."),
    "claude_code": ("Claude Code", "Transcripts of the real program with what its registry said of dialogs and of processes found dead, and public transcripts, which have no registry."),
    "openfox": ("OpenFox", "What the server said on its WebSocket and answered."),
    "opencode": ("opencode", "What the server said on its event stream and answered."),
    "gobby": ("gobby", "What the daemon said on its WebSocket and answered."),
    "spec": ("Spec orchestrators", "Contents of the status file, alone and with what the engine and its agents pushed."),
}


def clock(second):
    hours, rest = divmod(int(second), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def seconds(duration):
    return sum(int(n) * UNITS[unit] for n, unit in re.findall(r"(\d+)([smh])", duration))


def waits():
    """`for` of each alert."""
    rules = [rule for name in RULES for group in yaml.safe_load((ALERTS / name).read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"]: seconds(rule.get("for", "0s")) for rule in rules if "alert" in rule}


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def ours(alerts):
    return [fired for fired in alerts if not fired.alert.startswith(CLASSIC)]


def classic(alerts):
    return sorted({fired.alert.removeprefix(CLASSIC) for fired in alerts if fired.alert.startswith(CLASSIC)})


def by_scenario(groups):
    """Reasons by scenario; who gives two is told by `doubled`."""
    return {name: group["why"] for group in groups for name in group["in"]}


@dataclasses.dataclass
class Backtest:
    """Everything that was found, and the reasons for it."""

    # Of labelled sessions, with what fired.
    moments: list
    # What fired in the other cases, by name.
    recordings: dict
    # Last second of each case.
    ends: dict
    # Cases that could not be played.
    refused: set
    reasons: dict

    def __post_init__(self):
        self.waits = waits()
        self.why = collections.defaultdict(dict)
        for group in self.reasons["fires"]:
            for name in group["in"]:
                self.why[name][group["alert"]] = group["why"]
        self.quiet = by_scenario(self.reasons["quiet"])
        self.not_played = by_scenario(self.reasons["not_played"])

    # Verdicts of labelled sessions.

    def telling(self, moment, fired):
        """Those of a moment's alerts that decide about it."""
        stuck = [f for f in fired if f.category == "stuck"]
        if moment.verdict == "must_flag":
            return [f for f in stuck if f.severity != "info" and f.alert != SILENT
                    and f.first <= moment.at + self.waits[f.alert] and f.last >= moment.at]
        earlier = any(v == "must_flag" for _, v in labelled.moments(moment.label)[:moment.number - 1])
        return [f for f in stuck if (f.alert != SILENT or f.first <= moment.at) and (not earlier or f.last >= moment.at)]

    def is_right(self, moment, fired):
        return bool(self.telling(moment, ours(fired))) == (moment.verdict == "must_flag")

    def flags(self, moment, fired, name):
        """Whether a classic rule had flagged the session by the moment."""
        return any(f.alert == name and f.first <= moment.at and f.last >= moment.at for f in fired)

    def problems(self):
        for moment, fired in self.moments:
            if not self.is_right(moment, fired):
                told = ", ".join(f"{f.alert} at {f.first} s" for f in ours(fired)) or "nothing"
                yield f"{moment.name}, digests {moment.digests}: {moment.verdict}, but {told}"
        for name, fired in self.recordings.items():
            alerts = {f.alert for f in ours(fired)}
            yield from (f"{name}: {alert} fires without a reason" for alert in sorted(alerts - self.why[name].keys()))
            yield from (f"{name}: a reason for {alert}, which does not fire" for alert in sorted(self.why[name].keys() - alerts))
            if bool(alerts) == (name in self.quiet):
                yield f"{name}: {'fires, but has' if alerts else 'is quiet without'} a reason to be quiet"
            if name.startswith("made/") and any(f.category == "stuck" or f.severity == "critical" for f in ours(fired)):
                yield f"{name}: honest work is flagged"
        known = self.recordings.keys() | self.refused
        for name in sorted((self.why.keys() | self.quiet.keys() | self.not_played.keys()) - known):
            yield f"{name}: reasons, but no recording"
        for name in sorted(self.refused ^ self.not_played.keys()):
            yield f"{name}: {'cannot be played' if name in self.refused else 'can be played, against its reason'}"

    # The table.

    def text(self):
        return HEAD + self.summary() + LABELLED + self.labelled() + "".join(self.source(source) for source in ABOUT)

    def summary(self):
        last = {moment.label["file"]: (moment, fired) for moment, fired in self.moments if moment.digests}
        sides = {verdict: [m for m in last.values() if m[0].verdict == verdict] for verdict in ("must_flag", "must_not_flag")}
        lines = ["## Summary", "", row("rules", "loops found", "honest work flagged"), row("---", "---", "---")]

        def line(name, flags):
            found, false = (sum(flags(*m) for m in side) for side in sides.values())
            lines.append(row(name, f"{found} of {len(sides['must_flag'])}", f"{false} of {len(sides['must_not_flag'])}"))

        line("`agent_sessions.yml`", lambda moment, fired: bool(self.telling(moment, ours(fired))))
        names = sorted({f.alert for _, fired in self.moments for f in fired if f.alert.startswith(CLASSIC)})
        for name in names:
            line(f"classic: {name.removeprefix(CLASSIC)}", lambda moment, fired: self.flags(moment, fired, name))
        line("classic: any of them", lambda moment, fired: any(self.flags(moment, fired, name) for name in names))
        finished = [(m, f) for m, f in last.values() if m.verdict == "must_not_flag" and len(labelled.moments(m.label)) > 1]
        resolved = sum(any(f.category == "stuck" for f in ours(fired)) and self.is_right(moment, fired) for moment, fired in finished)
        made = [fired for name, fired in self.recordings.items() if name.startswith("made/")]
        false = sum(any(f.category == "stuck" or f.severity == "critical" for f in ours(fired)) for fired in made)
        lines += ["", "Classic rules are asked at the moment of judgement; ours as said below.", "",
                  f"- Finished loops whose alerts were resolved: {resolved} of {len(finished)}.",
                  f"- Long honest work (below) that is flagged as stuck or raises something critical: {false} of {len(made)}.",
                  f"- Recorded scenarios: {sum(not n.startswith(('made/', 'labelled/')) for n in self.recordings)}, "
                  f"of which {sum(bool(ours(f)) for n, f in self.recordings.items() if not n.startswith(('made/', 'labelled/')))} raise alerts, "
                  "each with its reason.", "", ""]
        return "\n".join(lines)

    def labelled(self):
        lines = [row("session", "verdict", "judged at", "right", "our alerts", "classic rules"), row(*["---"] * 6)]
        without = {moment.name: fired for moment, fired in self.moments if not moment.digests}
        for moment, fired in self.moments:
            if not moment.digests:
                continue
            told = [f"{f.alert} at {clock(f.first)}, call {moment.calls(f.first)}"
                    + (f", resolved at {clock(f.last)}" if f.last < moment.at else "") for f in sorted(ours(fired), key=lambda f: f.first)]
            if without[moment.name] != fired:
                other = [f"{f.alert} at {clock(f.first)}" for f in sorted(ours(without[moment.name]), key=lambda f: f.first)]
                told.append("without digests: " + (", ".join(other) or "none"))
            right = "yes" if self.is_right(moment, fired) and self.is_right(moment, without[moment.name]) else "**no**"
            old = [f"{f.alert.removeprefix(CLASSIC)} at {clock(f.first)}" for f in sorted(fired, key=lambda f: f.first)
                   if f.alert.startswith(CLASSIC)]
            lines.append(row(moment.name, moment.verdict.replace("_", " "), clock(moment.at), right, "<br>".join(told), "<br>".join(old)))
        return "\n".join(lines) + "\n\n"

    def source(self, source):
        names = sorted(name for name in self.recordings.keys() | self.refused if name.startswith(f"{source}/"))
        title, text = ABOUT[source]
        lines = [row("recording", "alert", "fires", "why", "classic rules"), row(*["---"] * 5)]
        for name in names:
            short, fired = name.partition("/")[2], self.recordings.get(name, [])
            old = ", ".join(classic(fired))
            if name in self.refused:
                lines.append(row(short, "not played", "", self.not_played.get(name, ""), ""))
            elif not ours(fired):
                lines.append(row(short, "none", "", self.quiet.get(name, ""), old))
            shown = collections.defaultdict(list)
            for f in ours(fired):
                shown[f.alert, f.severity].append(f)
            before = None
            for n, ((alert, severity), some) in enumerate(shown.items()):
                why = "" if alert == before else self.why[name].get(alert, "")
                before = alert
                lines.append(row(short if n == 0 else "", f"{alert} ({severity})", "<br>".join(self.span(name, f) for f in some), why,
                                 old if n == 0 else ""))
        return RECORDED.format(title=title, text=text) + "\n".join(lines) + "\n\n"

    def span(self, name, fired):
        of = f" ({fired.of.partition('=')[2]})" if fired.of.startswith("spec=") else ""
        return f"{clock(fired.first)} to {'the end' if fired.last >= self.ends[name] else clock(fired.last)}{of}"
