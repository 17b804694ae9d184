"""The stand of the end-to-end tests: an exporter, a Prometheus and an Alertmanager with copies of what is shipped, and a
server that takes what the pager, the chat, the desktop and webhooks would get."""

import collections
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
import threading
import time
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ALERTS = ROOT / "alerts"
# A minute of the rules takes 2.5 seconds, one of the routes a quarter of a second: what a rule does for a moment is then never
# hidden by a notification that waits for its group.
RULES_FASTER, ROUTES_FASTER = 24, 240
UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}
TOKEN = "a-token"

# One thing that somebody was told: who, whether it fires or is resolved, the summary, the session or nothing.
Word = collections.namedtuple("Word", "who status summary session")


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
                if path.startswith("/agents/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
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

    def notices(self, path):
        """Bodies that came to this path."""
        return [body for p, body in list(self.heard) if p == path]

    def words(self):
        """All that was said, how often. Left out are the watchdog and alerts without a summary, which the test posts."""
        said = collections.Counter()
        for path, body in list(self.heard):
            if path == "/pagerduty":
                status = {"trigger": "firing", "resolve": "resolved"}[body["event_action"]]
                payload = body["payload"]
                said[word("pager", status, payload["summary"], payload["custom_details"]["description"])] += 1
            elif path == "/slack":
                message = body["attachments"][0]
                title = message["title"]
                over = title.startswith("Over: ")
                said[word("chat", "resolved" if over else "firing", title.removeprefix("Over: "), message["text"])] += 1
            elif not path.endswith("/watchdog"):
                for alert in body["alerts"]:
                    notes = alert["annotations"]
                    said[word(path, alert["status"], notes.get("summary", ""), notes.get("description", ""))] += 1
        return collections.Counter({w: n for w, n in said.items() if w.summary})


def word(who, status, summary, description):
    session = re.search(r"\b[Ss]ession (\S+)", description)
    return Word(who.strip("/"), status, summary, session[1] if session else "")


# === Copies of what is shipped, faster ===


def faster(text, factor):
    """Durations of up to half an hour, divided; longer ones keep."""

    def shorter(match):
        ms = int(match[1]) * UNIT_MS[match[2]]
        if ms > 30 * 60_000 or ms == 0:
            return match[0]
        return f"{max(ms // factor, 1)}ms"

    return re.sub(r"\b(\d+)([smh])\b", shorter, text)


def instead(text, *pairs):
    """The text with each first part replaced, which has to be there."""
    for old, new in pairs:
        assert old in text, f"the shipped file lacks {old!r}"
        text = text.replace(old, new)
    return text


def copy_rules(folder):
    """The rules. `for`, `keep_firing_for` and ranges get shorter; numbers in expressions stay."""
    duration = re.compile(r"^\s+(for|keep_firing_for): |\[\d+m\]")
    for path in ALERTS.glob("*.yml"):
        if path.name in ("alertmanager.yml", "prometheus.yml"):
            continue
        lines = path.read_text().splitlines()
        (folder / path.name).write_text("\n".join(faster(l, RULES_FASTER) if duration.search(l) else l for l in lines) + "\n")


def copy_prometheus(folder, exporter, alertmanager):
    """The configuration of Prometheus with our ports. A scrape may take all of its interval, as machines are no faster."""
    text = instead((ALERTS / "prometheus.yml").read_text(), ("scrape_timeout: 10s", "scrape_timeout: 15s"))
    text = faster(text, RULES_FASTER)
    text = instead(text, ("127.0.0.1:9093", f"127.0.0.1:{alertmanager}"), ("127.0.0.1:10077", f"127.0.0.1:{exporter}"))
    (folder / "prometheus.yml").write_text(text)


def copy_routes(folder, port):
    """Everything that would be sent away comes to this port, with secrets that only we know."""
    here = f"http://127.0.0.1:{port}"
    for name, secret in (("pagerduty.key", "a" * 32), ("slack.url", f"{here}/slack"), ("webhook.token", TOKEN)):
        (folder / name).write_text(secret)
    text = instead(
        faster((ALERTS / "alertmanager.yml").read_text(), ROUTES_FASTER),
        ("/etc/alertmanager/", f"{folder}/"),
        ("http://127.0.0.1:8080/", f"{here}/"),
        ("http://127.0.0.1:10078/", f"{here}/desktop"),
        ("global:\n", f"global:\n  pagerduty_url: {here}/pagerduty\n"),
    )
    (folder / "alertmanager.yml").write_text(text)


# === Waiting ===


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def within(seconds, what, condition):
    """Waits until it holds, and gives what it gave."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if found := condition():
                return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.1)


# === The stand ===


class Stand:
    """All processes, in a folder of their own."""

    def __init__(self, folder, exporter):
        self.folder, self.binary, self.running = folder, str(pathlib.Path(exporter).resolve()), []
        self.receiver = Receiver()
        self.ports = {name: free_port() for name in ("exporter", "prometheus", "alertmanager")}
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}
        copy_rules(folder)
        copy_prometheus(folder, self.ports["exporter"], self.ports["alertmanager"])
        copy_routes(folder, self.receiver.server_address[1])
        # One server is looked for where none is, and nothing else but what is pushed and in this home.
        (folder / "exporter.toml").write_text(
            f'[sources.opencode]\nservers = ["http://127.0.0.1:{free_port()}"]\n'
            "[sources.openfox]\nenabled = false\n[sources.gobby]\nenabled = false\n"
        )

    def run(self, name, *command):
        log = open(self.folder / f"{name}.log", "ab")
        own = {k: v for k, v in os.environ.items() if not k.startswith(("AGENT_SESSION_", "OTEL_", "CODEX_", "CLAUDE_"))}
        home = str(self.folder / "home")
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=own | {"HOME": home})
        self.running.append(process)
        return process

    def start_exporter(self):
        self.exporter = self.run(
            "exporter", self.binary, f"--config.file={self.folder}/exporter.toml", f"--home={self.folder}/home",
            f"--state-dir={self.folder}/state", "--max-sessions=1100", f"--web.listen-address=127.0.0.1:{self.ports['exporter']}",
        )

    def kill_exporter(self):
        self.exporter.send_signal(signal.SIGKILL)
        self.exporter.wait()
        self.running.remove(self.exporter)

    def start(self):
        alertmanager = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
        assert alertmanager, "there is no Alertmanager"
        self.start_exporter()
        self.run(
            "alertmanager", alertmanager, f"--config.file={self.folder}/alertmanager.yml", f"--storage.path={self.folder}/am",
            f"--web.listen-address=127.0.0.1:{self.ports['alertmanager']}", "--cluster.listen-address=",
        )
        within(60, "Alertmanager is ready", lambda: get(f"{self.urls['alertmanager']}/-/ready"))
        within(60, "the exporter is ready", lambda: get(f"{self.urls['exporter']}/-/ready"))
        self.prometheus = self.run(
            "prometheus", "prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{self.ports['prometheus']}", f"--rules.alert.resend-delay={faster('1m', RULES_FASTER)}",
        )
        within(60, "the exporter is scraped", lambda: self.query('up{job="agent_session_exporter"} == 1'))
        known = f"{self.urls['prometheus']}/api/v1/alertmanagers"
        within(30, "Prometheus knows Alertmanager", lambda: "/api/v2/alerts" in get(known))
        # The watchdog fires before that, and is told to nobody.
        self.dropped = self.own_metrics("prometheus_notifications_dropped_total")

    def scrape_unpacked(self):
        """Less often and as plain text, for pages that are large: a binary that is built for tests takes long to pack them."""
        path, port = self.folder / "prometheus.yml", self.folder / "relay.port"
        self.run("relay", sys.executable, str(HERE / "relay.py"), str(self.ports["exporter"]), str(port))
        within(20, "the relay runs", port.exists)
        target = f"127.0.0.1:{port.read_text()}"
        own = [(f"scrape_{key}: {faster('15s', RULES_FASTER)}", f"scrape_{key}: 2s") for key in ("interval", "timeout")]
        path.write_text(instead(path.read_text(), (f"127.0.0.1:{self.ports['exporter']}", target), *own))
        self.prometheus.send_signal(signal.SIGHUP)
        within(20, "the relay is scraped", lambda: self.query(f'up{{instance="{target}"}} == 1'))

    def stop(self):
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait()

    def push(self, events):
        """Hands events to the exporter, which has to take all of them."""
        lines, address = list(map(json.dumps, events)), f"{self.urls['exporter']}/api/v1/events"
        for first in range(0, len(lines), 5000):
            body = "\n".join(lines[first : first + 5000]).encode()
            request = urllib.request.Request(address, body, {"Content-Type": "application/x-ndjson"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                taken = json.load(answer)
            assert answer.status == 202 and not taken["rejected"] and not taken["duplicate"], taken

    def query(self, expr):
        asked = urllib.parse.urlencode({"query": expr})
        return json.loads(get(f"{self.urls['prometheus']}/api/v1/query?{asked}"))["data"]["result"]

    def firing(self, name, session):
        return bool(self.query(f'ALERTS{{alertname="{name}", session="{session}", alertstate="firing"}}'))

    def rules(self):
        groups = json.loads(get(f"{self.urls['prometheus']}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def own_metrics(self, name):
        """Values of a family that Prometheus has about itself."""
        lines = get(f"{self.urls['prometheus']}/metrics").splitlines()
        found = [float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[{{ ]", line)]
        assert found, f"Prometheus has no {name}"
        return found

    def alerts(self, **labels):
        """Alerts that Alertmanager knows with these labels."""
        alerts = json.loads(get(f"{self.urls['alertmanager']}/api/v2/alerts"))
        return [a for a in alerts if labels.items() <= a["labels"].items()]

    def inhibitors(self, **labels):
        """Names of the alerts that hold back the one alert with these labels."""
        found = self.alerts(**labels)
        assert len(found) == 1, f"{len(found)} alerts with {labels}"
        names = {a["fingerprint"]: a["labels"]["alertname"] for a in self.alerts()}
        return {names[f] for f in found[0]["status"]["inhibitedBy"]}

    def post(self, **labels):
        """Posts an alert as the runbook tells to try the path."""
        pairs = [f"{name}={value}" for name, value in labels.items()]
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600))
        address = f"--alertmanager.url={self.urls['alertmanager']}"
        subprocess.run(["amtool", "alert", "add", address, f"--end={end}", *pairs], check=True, stdin=subprocess.DEVNULL)
