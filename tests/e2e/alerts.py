#!/usr/bin/env python3
"""The shipped rules and routes from end to end: the exporter, fed with what agents do, a real Prometheus, a real
Alertmanager, and a server that takes what PagerDuty, Slack, the desktop and webhooks would get.

Rules and configuration are copies of the shipped ones with shorter durations; numbers in expressions stay as they are,
because what is pushed lies in the past. Argument: the exporter's binary. Needs prometheus, an Alertmanager and amtool on
the PATH, and PyYAML.
"""

import collections
import json
import pathlib
import re
import shutil
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import stories  # noqa: E402
from stand import ROUTES_FASTER, ROOT, RULES_FASTER, Stand, Word, get, within  # noqa: E402

STUCK = {
    "AgentSessionSpinning": (f"{stories.SOURCE} session in {stories.PROJECT} repeats itself", "loops"),
    "AgentSessionRepeatingError": (f"{stories.SOURCE} session in {stories.PROJECT} runs into one error again and again", "errs"),
    "AgentSessionSlowLoop": (f"{stories.SOURCE} session in {stories.PROJECT} comes back to one call", "slow"),
    "AgentSessionStepLoop": (f"{stories.SOURCE} session in {stories.PROJECT} goes round in its workflow", "rounds"),
}
WAITS = f"{stories.SOURCE} session in {stories.PROJECT} waits for you"
DOWN = "The exporter of agents on 127.0.0.1:%s cannot be reached"
SPINS = STUCK["AgentSessionSpinning"]
# How long rules keep firing without their condition, and how long a warning stands before it pages.
KEPT, DOWN_KEPT, PAGES_AFTER = 180 / RULES_FASTER, 360 / RULES_FASTER, 1800 / ROUTES_FASTER
GROUPED_BY = {"alertname", "source", "project", "session"}


def told(status, summary, session="", to=("chat", "desktop", "pager")):
    return collections.Counter(Word(who, status, summary, session) for who in to)


def all_told(stand, seconds, what, expected):
    """Everything is told within so long, each thing once and nothing else."""
    heard = stand.receiver
    within(seconds, f"{what}: {expected - heard.words()}", lambda: not expected - heard.words())
    more = heard.words() - expected
    assert not more, f"{what}: also told: {more}"
    return expected


def nothing_told(stand, seconds, what, heard):
    """For so long nobody hears anything."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        more = stand.receiver.words() - heard
        assert not more, f"{what}: told: {more}"
        time.sleep(0.1)


# === What is to be seen ===


def tells_each_once(stand):
    """All that goes wrong is told to whom it should be, once, and what is inhibited to nobody."""
    heard = stand.receiver
    for story in (stories.spins(), stories.fails_alike(), stories.comes_back(), stories.goes_round()):
        stand.push(story)
    stand.push(stories.fails_again(600, 350, *stories.began(1000)))
    stand.push(stories.works())
    for session, ago in (("asks", 600), ("waits", 2100)):
        stand.push(stories.asks(session, ago))
    fails = STUCK["AgentSessionRepeatingError"][0]
    within(30, "the chat is told of errors", lambda: heard.words()[Word("chat", "firing", fails, "fails")])
    stand.push(stories.fails_again(340, 1))

    # Whoever waits for half an hour is told as a warning, and not as an info as well.
    expected = told("firing", WAITS, "waits") + told("firing", WAITS, "asks", to=["agents/digest"])
    expected += told("firing", f"opencode cannot be read on 127.0.0.1:{stand.ports['exporter']}", to=["chat", "desktop"])
    for summary, session in STUCK.values():
        expected += told("firing", summary, session)
    expected += told("firing", fails, "fails")
    within(60, "the chat is told of a slow loop", lambda: heard.words()[Word("chat", "firing", *STUCK["AgentSessionSlowLoop"])])
    stand.push(stories.comes_back_more())
    all_told(stand, PAGES_AFTER + 20, "all that is wrong", expected)
    order = [word.who for word in heard.words() if word[1:] == ("firing", *SPINS)]
    assert order[2] == "pager", f"a warning pages only once it stood for a while: {order}"
    return expected


def groups(stand):
    """One problem of one session is one notification."""
    bodies = stand.receiver.notices("/desktop")
    for body in bodies:
        labels = body["commonLabels"]
        assert len(body["alerts"]) == 1, f"in one notification: {[a['labels'] for a in body['alerts']]}"
        assert set(body["groupLabels"]) == GROUPED_BY & set(labels), f"grouped by {set(body['groupLabels'])}"
    text = json.dumps(stand.receiver.heard)
    assert "<error" not in text and "<no value>" not in text, "a template of an annotation failed"
    assert "(certain permission)" in text, "the annotation names what is waited for"


def holds_back(stand):
    """The session's own alerts: those that say less are there, and are held back by the one that says most."""
    within(40, "the session that comes back gets nowhere", lambda: stand.firing("AgentSessionNoProgress", "slow"))
    for session in ("loops", "fails"):
        within(30, "the slow loop of one that spins", lambda: stand.firing("AgentSessionSlowLoop", session))
    time.sleep(1)
    # Of several that would do, Alertmanager names one.
    by = lambda name, session: stand.inhibitors(alertname=f"AgentSession{name}", session=session)
    for name, (_, session) in STUCK.items():
        assert not stand.inhibitors(alertname=name, session=session), session
        assert by("NoProgress", session) and by("NoProgress", session) <= {name, "AgentSessionSlowLoop"}, session
    assert by("ReadsInCircles", "loops") and by("ReadsInCircles", "loops") <= {"AgentSessionSpinning", "AgentSessionSlowLoop"}
    assert by("SlowLoop", "loops") == {"AgentSessionSpinning"}
    assert by("Spinning", "fails") == {"AgentSessionRepeatingError"} and by("SlowLoop", "fails")
    info = dict(alertname="AgentSessionWaitingForUser", session="waits", severity="info")
    assert stand.inhibitors(**info) == {"AgentSessionWaitingForUser"}
    assert not stand.inhibitors(alertname="AgentSessionWaitingForUser", session="asks")
    assert not stand.alerts(session="works"), "honest work has an alert"


def asks_two_things(stand):
    """A permission and a question are one alert, which goes on when the older of them is answered."""
    oldest = 'agent_session_oldest_pending_user_action_timestamp_seconds{session="asks", kind="%s"}'
    before, heard = stand.alerts(session="asks"), stand.receiver.words()
    assert [a["labels"]["alertname"] for a in before] == ["AgentSessionWaitingForUser"], before
    assert stand.query('agent_session_pending_user_actions{session="asks"} == 2') and stand.query(oldest % "permission")
    stand.push(stories.permits("asks"))
    within(10, "the question is the oldest", lambda: stand.query(oldest % "question") and not stand.query(oldest % "permission"))
    for _ in range(20):
        after = stand.alerts(session="asks")
        assert [a["startsAt"] for a in after] == [a["startsAt"] for a in before], after
        time.sleep(0.1)
    assert stand.receiver.words() == heard, "the answer is told as something new"


def survives_a_restart(stand):
    """The exporter is killed while alerts fire, and started on the same state: nobody hears of it."""
    heard = stand.receiver.words()
    asked = 'ALERTS_FOR_STATE{alertname=~"AgentSession(Spinning|RepeatingError|SlowLoop|StepLoop|WaitingForUser|ExporterSourceDown)"}'
    since = lambda: {tuple(sorted(s["metric"].items())): s["value"][1] for s in stand.query(asked)}
    began = since()
    assert len(began) == 12, began
    stand.kill_exporter()
    within(4, "the restart is seen", lambda: stand.query('up{job="agent_session_exporter"} == 0'))
    stand.start_exporter()
    # Longer than alerts are kept: they stand because their conditions are back.
    nothing_told(stand, KEPT + 4, "because of a restart", heard)
    assert since() == began, "something began anew"


def resolves_and_fires_again(stand, expected):
    heard = stand.receiver
    stand.push(stories.lands())
    expected += told("resolved", *SPINS)
    all_told(stand, KEPT + 20, "an edit ends the loop", expected)
    assert not stand.alerts(session="loops"), "an alert of the session is left"
    stand.push(stories.spins_again())
    expected += told("firing", *SPINS)
    all_told(stand, PAGES_AFTER + 30, "the new loop", expected)
    fired = [a["startsAt"] for b in heard.notices("/desktop") for a in b["alerts"] if a["labels"].get("session") == "loops"]
    assert fired[0] == fired[1] < fired[2], f"began at {fired}"
    return expected


def goes_down(stand, expected):
    """Down for longer than alerts are kept: that is told, and of the sessions nothing."""
    stand.kill_exporter()
    expected += told("firing", DOWN % stand.ports["exporter"])
    all_told(stand, 30, "that it is down", expected)
    for labels in (dict(alertname="AgentSessionSpinning", session="loops"), dict(alertname="AgentSessionExporterSourceDown")):
        assert stand.inhibitors(**labels) == {"AgentSessionExporterDown"}, labels
    within(KEPT + 20, "the session's alert has run out", lambda: not stand.firing("AgentSessionSpinning", "loops"))
    nothing_told(stand, 4, "while nothing is known", expected)
    return expected


def comes_back(stand, expected):
    """Up again: that is told, and of sessions nothing, as their loops go on."""
    stand.start_exporter()
    expected += told("resolved", DOWN % stand.ports["exporter"])
    all_told(stand, DOWN_KEPT + 20, "that it is up again", expected)
    # The rule that takes longest to be sure.
    within(60, "the slow loop goes on", lambda: stand.firing("AgentSessionSlowLoop", "slow"))
    nothing_told(stand, PAGES_AFTER + 2, "when it goes on", expected)
    return expected


def inhibits_posted(stand):
    """Posted alerts, those that are held back and their neighbours that are not."""
    here, there, blind = (dict(job="posted", instance=i) for i in ("here", "there", "blind"))
    one, two = dict(source="codex", session="1"), dict(source="codex", session="2")
    alert = lambda name, severity, category, *parts: {k: v for part in parts for k, v in part.items()} | dict(
        alertname=name, severity=severity, category=category
    )
    weak = lambda *parts: [alert(f"AgentSession{n}", "info", "stuck", *parts) for n in ("ReadsInCircles", "NoProgress")]
    strong = [
        alert(f"AgentSession{name}", "warning", "stuck", there, dict(source="codex", session=f"strong-{n}"))
        for n, name in enumerate(("Spinning", "RepeatingError", "SlowLoop", "StepLoop"))
    ]
    held = [w for n in range(4) for w in weak(there, dict(source="codex", session=f"strong-{n}"))] + [
        alert("AgentSessionSpinning", "warning", "stuck", here, one),
        alert("AgentSessionExporterEvicting", "warning", "exporter", here),
        alert("AgentOrchestrationFailed", "warning", "event", here, dict(source="spec", orchestration="o")),
        alert("AgentSessionLost", "warning", "lost", there, one),
        alert("AgentSessionWaitingForUser", "info", "waiting", there, one),
        alert("AgentSessionExporterSourceDown", "warning", "exporter", blind, dict(source="codex")),
    ]
    held += [
        alert("AgentSessionSlowLoop", "warning", "stuck", there, dict(source="codex", session=f"strong-{n}")) for n in (0, 1)
    ]
    held += [alert("AgentSessionSpinning", "warning", "stuck", there, dict(source="codex", session="strong-1"))]
    # Sessions of the same name: on another instance, of another source.
    others = weak(blind, dict(source="codex", session="strong-0")) + weak(there, dict(source="opencode", session="strong-0"))
    free = strong + others + weak(there, two)
    free += [
        alert("AgentSessionExporterDown", "critical", "exporter", here),
        alert("AgentSessionExporterWatchdog", "none", "exporter", here),
        alert("AgentSessionExporterSourceDown", "warning", "exporter", there, dict(source="codex")),
        alert("AgentSessionLost", "warning", "lost", there, dict(source="opencode", session="3")),
        alert("AgentSessionWaitingForUser", "warning", "waiting", there, one),
        alert("AgentSessionWaitingForUser", "info", "waiting", there, two),
        alert("AgentSessionFailed", "warning", "event", there, one),
        alert("AgentSessionRateLimited", "warning", "limits", dict(source="codex", model="m")),
        alert("AgentSessionExporterSourceDown", "critical", "exporter", blind),
    ]
    for labels in held + free:
        stand.post(**labels)
    for labels in held:
        within(10, f"held back: {labels}", lambda: stand.inhibitors(**labels))
    for labels in free:
        assert not stand.inhibitors(**labels), f"held back: {labels}"
    return len(held), len(free)


def posts_a_group(stand):
    """Specs of one orchestration that fail together are one notification."""
    own = dict(alertname="AgentOrchestrationSpecFailed", severity="warning", category="event", source="spec", project="shop")
    for spec in ("login", "cart"):
        stand.post(**own, orchestration="posted", spec=spec)
    specs = lambda: [
        sorted(a["labels"]["spec"] for a in body["alerts"])
        for body in stand.receiver.notices("/desktop")
        if body["groupLabels"].get("orchestration") == "posted"
    ]
    # The second comes too late for the first notification, or not.
    within(10, "both specs are told", lambda: specs()[-1:] == [["cart", "login"]])


def rules_are_well(stand):
    rules = stand.rules()
    for rule in rules:
        assert rule["health"] == "ok" and not rule.get("lastError"), f"{rule['name']}: {rule['health']} {rule.get('lastError')}"
    failures = stand.own_metrics("prometheus_rule_evaluation_failures_total")
    assert not any(failures), f"evaluations that failed, by group: {failures}"
    return len(rules)


def is_well(stand):
    """No rule, scrape or notification had an error, by Prometheus' own account and by all logs."""
    rules_are_well(stand)
    for name in (
        "prometheus_notifications_errors_total",
        "prometheus_target_scrapes_exceeded_sample_limit_total",
        "prometheus_target_scrapes_sample_duplicate_timestamp_total",
        "prometheus_target_scrapes_sample_out_of_bounds_total",
        "prometheus_target_scrapes_sample_out_of_order_total",
        "prometheus_tsdb_out_of_bound_samples_total",
        "prometheus_tsdb_out_of_order_samples_total",
    ):
        assert not any(stand.own_metrics(name)), f"{name}: {stand.own_metrics(name)}"
    assert stand.own_metrics("prometheus_notifications_dropped_total") == stand.dropped, "a notification was dropped"
    targets = lambda: json.loads(get(f"{stand.urls['prometheus']}/api/v1/targets"))["data"]["activeTargets"]
    within(20, "the scrape has no error", lambda: [(t["health"], t["lastError"]) for t in targets()] == [("up", "")])
    for name in ("prometheus", "alertmanager", "exporter"):
        log = (stand.folder / f"{name}.log").read_text(errors="replace")
        # The exporter may warn: a server is missing.
        bad = [line for line in log.splitlines() if re.search("level=(warn|error)| ERROR |panicked", line)]
        assert not bad, f"{name}: {bad}"
    assert not [p for p, _ in stand.receiver.heard if p.startswith("/refused")], "the webhook's token was not sent"
    within(10, "the watchdog is heard", lambda: stand.receiver.notices("/agents/watchdog"))


def evaluation_of_many(stand):
    """Seconds that all rules take together with 1,000 sessions; reported, not judged."""
    stand.scrape_unpacked()
    stand.push(stories.crowd(1000))
    within(60, "all of them are there", lambda: stand.query("count(agent_session:active) >= 1000"))
    took = []
    for _ in range(5):
        time.sleep(1)
        took.append(sum(stand.own_metrics("prometheus_rule_group_last_duration_seconds")))
    return min(took)


def main(exporter):
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "home/.codex/sessions").mkdir(parents=True)
    # A session that ended long ago; its file is what makes codex a source that is up.
    recorded = "rollout-2026-11-29T15-00-00-00000001-0000-7000-8000-000000000000.jsonl"
    shutil.copy(ROOT / "tests/fixtures/codex/edit_ok.rollout.jsonl", folder / "home/.codex/sessions" / recorded)
    stand = Stand(folder, exporter)
    began = time.monotonic()

    def shown(what):
        print(f"alerts: {what} ({time.monotonic() - began:.0f} s)", flush=True)

    try:
        stand.start()
        expected = tells_each_once(stand)
        groups(stand)
        holds_back(stand)
        shown(f"{sum(expected.values())} notifications, each once; weaker alerts are held back")
        asks_two_things(stand)
        shown("a permission and a question are one alert")
        survives_a_restart(stand)
        shown("a killed and restarted exporter is no news")
        expected = resolves_and_fires_again(stand, expected)
        shown("an edit is the all-clear, and a new loop is told anew")
        expected = goes_down(stand, expected)
        shown("an exporter that stays down is told, its sessions are not over")
        expected = comes_back(stand, expected)
        shown("when it is back, they are not new")
        held, free = inhibits_posted(stand)
        posts_a_group(stand)
        shown(f"{held} posted alerts are inhibited, {free} neighbours are not, and what belongs together is one notification")
        is_well(stand)
        took = evaluation_of_many(stand)
        rules = rules_are_well(stand)
        shown(f"{rules} rules without an error; with 1,000 sessions all take {took * 1000:.0f} ms")
    except BaseException:
        for path, body in stand.receiver.heard:
            if "watchdog" not in path:
                print(path, json.dumps(body)[:400], file=sys.stderr)
        for log in folder.glob("*.log"):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
        raise
    finally:
        stand.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1])
