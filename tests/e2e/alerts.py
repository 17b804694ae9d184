#!/usr/bin/env python3
"""The shipped rules and routes from end to end: a page of metrics, a real Prometheus, a real Alertmanager, and a server
that takes what PagerDuty, Slack, the desktop and webhooks would get.

The rules and the configuration are copies of the shipped ones with shorter durations; numbers in expressions stay as
they are. The page of metrics is written here, so that a session does what the test wants; it runs in a process of its
own that can be killed. Needs prometheus, an Alertmanager and amtool on the PATH, and PyYAML.
"""

import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ALERTS = ROOT / "alerts"
# A minute of the rules takes five seconds, one of the routes less than half a second.
RULES_FASTER, ROUTES_FASTER = 12, 150
SPINS = "codex session in shop repeats itself"
UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}


# === The page of metrics ===

STATES = "queued running progressing waiting_for_user stalled blocked completed failed cancelled unknown".split()


def session(name, state, reason, ago, **values):
    """One session's samples, as the exporter writes them. `ago`: seconds since its last activity."""
    now = time.time()
    own = f'source="codex",project="shop",session="{name}"'
    lines = [f'agent_session_state{{{own},state="{s}"}} {int(s == state)}' for s in STATES]
    lines.append(f'agent_session_state_reason{{{own},reason="{reason}"}} 1')
    lines.append(f"agent_session_last_activity_timestamp_seconds{{{own}}} {now - ago:.3f}")
    for metric, value in values.items():
        lines.append(f"agent_session_{metric}{{{own}}} {value}")
    return lines


def page(wanted):
    """The text of /metrics."""
    lines = ['agent_session_exporter_build_info{version="0"} 1']
    spins = wanted["spins"]
    signals = dict(
        no_new_ratio=0.9 if spins else 0, window_calls=60 if spins else 1, calls_since_progress=80 if spins else 1,
        read_coverage_ratio=9 if spins else 1, error_streak=0, repeated_call_max=3, turns_since_progress=0,
        step_entries_max=0, seconds_since_progress=1000 if spins else 1, in_flight_calls=0, background_tasks=0, stop_pending=0,
    )
    lines += session("loops", "stalled" if spins else "progressing", "spinning" if spins else "working", 2, **signals)
    # A permission and a question are open at once, which a rule could stumble over.
    lines += session("asks", "waiting_for_user", "permission", 600, pending_user_actions=2)
    for kind, ago in (("permission", 600), ("question", 500)):
        lines.append(
            "agent_session_oldest_pending_user_action_timestamp_seconds"
            f'{{source="codex",project="shop",session="asks",kind="{kind}",certainty="certain"}} {time.time() - ago:.3f}'
        )
    quiet = dict(signals, no_new_ratio=0.1, window_calls=20, calls_since_progress=20, read_coverage_ratio=1, seconds_since_progress=100)
    for n in range(wanted["crowd"]):
        lines += session(f"crowd-{n}", "running", "working", n % 60, **quiet)
    return "\n".join(lines) + "\n"


def serve_page(port, path):
    """Serves what the file asks for, until it is killed."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = page(json.loads(pathlib.Path(path).read_text())).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Page).serve_forever()


# === Who is told ===


class Receiver(http.server.ThreadingHTTPServer):
    """Takes every notification and remembers it as (path, body)."""

    def __init__(self):
        self.heard = []
        outer = self

        class Take(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                path = self.path
                if path.startswith("/agents/") and self.headers.get("Authorization") != "Bearer a-token":
                    path = "/refused" + path
                outer.heard.append((path, body))
                self.send_response(202 if path == "/pagerduty" else 200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Take)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def pages(self, action, text=SPINS):
        """PagerDuty events of this action that are about it."""
        return sum(
            p == "/pagerduty" and b["event_action"] == action and text in b["payload"]["summary"] for p, b in list(self.heard)
        )

    def chats(self, over=False, text=SPINS):
        """Messages in the chat: that it began, or that it is over."""
        titles = [b["attachments"][0]["title"] for p, b in list(self.heard) if p == "/slack"]
        return titles.count(("Over: " if over else "") + text)

    def webhooks(self, path, status, name):
        """Notices of this alert at a webhook."""
        return sum(
            p == path and a["status"] == status and a["labels"]["alertname"] == name
            for p, b in list(self.heard)
            if p == path
            for a in b["alerts"]
        )


# === Copies of what is shipped, faster ===


def faster(text, factor):
    """Durations of up to half an hour, divided; longer ones keep."""

    def shorter(match):
        ms = int(match[1]) * UNIT_MS[match[2]]
        if ms > 30 * 60_000 or ms == 0:
            return match[0]
        return f"{max(ms // factor, 1)}ms"

    return re.sub(r"\b(\d+)([smh])\b", shorter, text)


def copy_rules(folder):
    """The three files that are loaded. `for`, `keep_firing_for` and ranges get shorter."""
    for name in yaml.safe_load((ALERTS / "prometheus.yml").read_text())["rule_files"]:
        lines = (ALERTS / name).read_text().splitlines()
        duration = re.compile(r"^\s+(for|keep_firing_for): |\[\d+m\]")
        (folder / name).write_text("\n".join(faster(l, RULES_FASTER) if duration.search(l) else l for l in lines) + "\n")


def copy_routes(folder, port):
    """Everything that would be sent away comes here, with secrets that only we know."""
    for name, secret in (("pagerduty.key", "a" * 32), ("slack.url", f"http://127.0.0.1:{port}/slack"), ("webhook.token", "a-token")):
        (folder / name).write_text(secret)
    text = faster((ALERTS / "alertmanager.yml").read_text(), ROUTES_FASTER).replace("/etc/alertmanager/", f"{folder}/")
    text = text.replace("http://127.0.0.1:8080/", f"http://127.0.0.1:{port}/").replace("http://127.0.0.1:10078/", f"http://127.0.0.1:{port}/desktop")
    text = text.replace("global:\n", f"global:\n  pagerduty_url: http://127.0.0.1:{port}/pagerduty\n", 1)
    (folder / "alertmanager.yml").write_text(text)


# === The stand ===


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def within(seconds, what, condition):
    """Waits until it holds."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if condition():
                return
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.2)


def during(seconds, what, condition):
    """Holds for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), f"not for {seconds} s: {what}"
        time.sleep(0.2)


class Stand:
    """All processes, in a folder of their own."""

    def __init__(self, folder):
        self.folder, self.running = folder, []
        self.receiver = Receiver()
        self.ports = {name: free_port() for name in ("target", "prometheus", "alertmanager")}
        self.want(spins=False, crowd=0)
        copy_rules(folder)
        copy_routes(folder, self.receiver.server_address[1])
        config = yaml.safe_load((ALERTS / "prometheus.yml").read_text())
        config["global"] = dict(scrape_interval="1s", scrape_timeout="1s", evaluation_interval="1s")
        config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{self.ports['alertmanager']}"]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{self.ports['target']}"]
        config["scrape_configs"].append(
            dict(job_name="prometheus", static_configs=[dict(targets=[f"127.0.0.1:{self.ports['prometheus']}"])])
        )
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    def want(self, **wanted):
        path = self.folder / "wanted.json"
        old = json.loads(path.read_text()) if path.exists() else {}
        new = path.with_suffix(".new")
        new.write_text(json.dumps({**old, **wanted}))
        new.replace(path)

    def run(self, name, *command):
        log = open(self.folder / f"{name}.log", "ab")
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.running.append(process)
        return process

    def start_target(self):
        self.target = self.run("target", sys.executable, __file__, "page", str(self.ports["target"]), str(self.folder / "wanted.json"))

    def kill_target(self):
        self.target.send_signal(signal.SIGKILL)
        self.target.wait()
        self.running.remove(self.target)

    def start(self):
        alertmanager = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
        assert alertmanager, "there is no Alertmanager"
        self.start_target()
        self.run(
            "alertmanager", alertmanager, f"--config.file={self.folder}/alertmanager.yml", f"--storage.path={self.folder}/am",
            f"--web.listen-address=127.0.0.1:{self.ports['alertmanager']}", "--cluster.listen-address=",
        )
        self.run(
            "prometheus", "prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{self.ports['prometheus']}", "--rules.alert.resend-delay=1s",
        )
        within(60, "the target is scraped", lambda: self.query('up{job="agent_session_exporter"} == 1'))

    def stop(self):
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait()

    def query(self, expr):
        asked = urllib.parse.urlencode({"query": expr})
        return get(f"http://127.0.0.1:{self.ports['prometheus']}/api/v1/query?{asked}")["data"]["result"]

    def firing(self, name):
        return bool(self.query(f'ALERTS{{alertname="{name}", alertstate="firing"}}'))

    def post(self, *alerts):
        url = f"http://127.0.0.1:{self.ports['alertmanager']}/api/v2/alerts"
        body = json.dumps([{"labels": a} for a in alerts]).encode()
        urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=10).close()

    def inhibited(self, **labels):
        """Whether the alert with these labels is held back by another."""
        alerts = get(f"http://127.0.0.1:{self.ports['alertmanager']}/api/v2/alerts")
        found = [a for a in alerts if labels.items() <= a["labels"].items()]
        assert len(found) == 1, f"{len(found)} alerts with {labels}"
        return bool(found[0]["status"]["inhibitedBy"])


# === What is to be seen ===


def pages_once(stand):
    heard = stand.receiver
    stand.want(spins=True)
    within(60, "the chat is told", lambda: heard.chats() == 1)
    assert heard.pages("trigger") == 0, "a warning pages only once it stood for a while"
    within(20, "the desktop is told", lambda: heard.webhooks("/desktop", "firing", "AgentSessionSpinning") == 1)
    within(60, "the pager is told", lambda: heard.pages("trigger") == 1)
    assert stand.firing("AgentSessionReadsInCircles"), "the weaker sign fires as well"
    within(30, "the digest is told of who waits", lambda: heard.webhooks("/agents/digest", "firing", "AgentSessionWaitingForUser") == 1)
    assert heard.webhooks("/agents/digest", "firing", "AgentSessionReadsInCircles") == 0, "what is inhibited is not told"


def counts(stand):
    heard = stand.receiver
    return heard.chats(), heard.chats(over=True), heard.pages("trigger"), heard.pages("resolve")


def survives_a_restart(stand):
    began = stand.query('ALERTS_FOR_STATE{alertname="AgentSessionSpinning"}')[0]["value"][1]
    before = counts(stand)
    stand.kill_target()
    within(4, "the restart is seen", lambda: stand.query('up{job="agent_session_exporter"} == 0'))
    stand.start_target()
    # Longer than the alert is kept: it stands because its condition is back.
    during(22, "nothing is said because of a restart", lambda: counts(stand) == before)
    assert stand.query('ALERTS_FOR_STATE{alertname="AgentSessionSpinning"}')[0]["value"][1] == began, "it began anew"
    assert not stand.receiver.pages("trigger", "cannot be reached"), "a restart pages"


def resolves_and_fires_again(stand):
    heard = stand.receiver
    stand.want(spins=False)
    within(60, "the chat is told that it is over", lambda: heard.chats(over=True) == 1)
    within(20, "the page is closed", lambda: heard.pages("resolve") == 1)
    stand.want(spins=True)
    within(60, "a new loop is told", lambda: heard.chats() == 2)
    within(60, "a new loop pages", lambda: heard.pages("trigger") == 2)


def stays_down(stand):
    before = counts(stand)
    stand.kill_target()
    within(30, "that it is down pages", lambda: stand.receiver.pages("trigger", "cannot be reached") == 1)
    within(60, "the session's alert has run out", lambda: not stand.firing("AgentSessionSpinning"))
    during(6, "no all-clear while nothing is known", lambda: counts(stand) == before)
    stand.start_target()
    within(60, "that it is up again is told", lambda: stand.receiver.pages("resolve", "cannot be reached") == 1)
    within(60, "the loop goes on", lambda: stand.firing("AgentSessionSpinning"))
    during(20, "it is neither over nor new", lambda: counts(stand) == before)


def inhibits(stand):
    """Posted alerts, those that are held back and their neighbours that are not."""
    here, there = dict(job="posted", instance="here"), dict(job="posted", instance="there")
    one, two = dict(source="codex", session="1"), dict(source="codex", session="2")
    alert = lambda name, severity, category, *parts: {k: v for part in parts for k, v in part.items()} | dict(
        alertname=name, severity=severity, category=category
    )
    stuck = [alert(f"AgentSession{n}", "info", "stuck", there, s) for n in ("ReadsInCircles", "NoProgress") for s in (one, two)]
    held = [
        alert("AgentSessionSpinning", "warning", "stuck", here, one),
        alert("AgentSessionExporterEvicting", "warning", "exporter", here),
        alert("AgentSessionLost", "warning", "lost", there, one),
        alert("AgentSessionWaitingForUser", "info", "waiting", there, one),
        stuck[0], stuck[2],
        alert("AgentSessionExporterSourceDown", "warning", "exporter", dict(job="posted", instance="blind"), dict(source="codex")),
    ]
    free = [
        alert("AgentSessionExporterDown", "critical", "exporter", here),
        alert("AgentSessionExporterSourceDown", "warning", "exporter", there, dict(source="codex")),
        alert("AgentSessionLost", "warning", "lost", there, dict(source="opencode", session="3")),
        alert("AgentSessionWaitingForUser", "warning", "waiting", there, one),
        alert("AgentSessionWaitingForUser", "info", "waiting", there, two),
        alert("AgentSessionStepLoop", "warning", "stuck", there, one),
        stuck[1], stuck[3],
        alert("AgentSessionFailed", "warning", "event", there, one),
        alert("AgentSessionRateLimited", "warning", "limits", dict(source="codex", model="m")),
        alert("AgentSessionExporterSourceDown", "critical", "exporter", dict(job="posted", instance="blind")),
    ]
    # The page of the blind one has no source, so it is looked for by its instance and severity.
    stand.post(*held, *free)
    time.sleep(1)
    for labels in held:
        within(10, f"held back: {labels}", lambda: stand.inhibited(**labels))
    for labels in free:
        assert not stand.inhibited(**labels), f"held back: {labels}"
    return len(held), len(free)


def rules_are_well(stand):
    groups = get(f"http://127.0.0.1:{stand.ports['prometheus']}/api/v1/rules")["data"]["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        assert rule["health"] == "ok", f"{rule['name']}: {rule['health']} {rule.get('lastError')}"
    missed = stand.query("sum(prometheus_rule_evaluation_failures_total)")[0]["value"][1]
    assert missed == "0", f"{missed} evaluations failed"
    return sum(len(group["rules"]) for group in groups)


def evaluation_of_many(stand):
    """Seconds that all rules take together with 1,000 sessions; reported, not judged."""
    stand.want(crowd=1000)
    within(60, "all of them are there", lambda: stand.query("count(agent_session:active) > 1000"))
    time.sleep(5)
    return float(stand.query("sum(min_over_time(prometheus_rule_group_last_duration_seconds[4s]))")[0]["value"][1])


def main():
    folder = pathlib.Path(tempfile.mkdtemp())
    stand = Stand(folder)
    try:
        stand.start()
        for step in (pages_once, survives_a_restart, resolves_and_fires_again, stays_down):
            step(stand)
            print(f"alerts: {step.__name__.replace('_', ' ')}", flush=True)
        held, free = inhibits(stand)
        print(f"alerts: {held} posted alerts are inhibited, {free} neighbours are not")
        assert not [p for p, _ in stand.receiver.heard if p.startswith("/refused")], "the webhook's token was not sent"
        within(10, "the watchdog is heard", lambda: stand.receiver.webhooks("/agents/watchdog", "firing", "AgentSessionExporterWatchdog"))
        rules = rules_are_well(stand)
        took = evaluation_of_many(stand)
        rules_are_well(stand)
        print(f"alerts: {rules} rules without an error; with 1,000 sessions all take {took * 1000:.0f} ms")
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
    if sys.argv[1:2] == ["page"]:
        serve_page(*sys.argv[2:])
    else:
        main()
