"""Rotel, a collector that can be killed and comes back on the same ports; what it got it prints."""

import pathlib
import socket
import subprocess
import time

import rotel

AGENT = pathlib.Path(rotel.__file__).parent / "rotel-agent"
PATIENCE = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def within(what, check):
    end = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
        time.sleep(0.01)


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


class Collector:
    """Rotel on ports of its own. What all its lives printed is in one file."""

    def __init__(self, folder):
        self.folder = folder
        self.out = folder / "rotel.out"
        self.grpc, self.http = free_port(), free_port()
        self.start()

    def start(self):
        command = [
            AGENT, "start", "--exporter", "blackhole", "--pid-file", self.folder / "rotel.pid",
            "--otlp-grpc-endpoint", f"127.0.0.1:{self.grpc}", "--otlp-http-endpoint", f"127.0.0.1:{self.http}",
            "--debug-log", "traces", "--debug-log", "logs", "--debug-log-verbosity", "detailed",
        ]
        with self.out.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        within("rotel listens", lambda: listens(self.grpc) and listens(self.http))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def printed(self):
        return self.out.read_text(errors="replace")
