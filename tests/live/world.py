"""The place of one scenario: a home of its own, a project with a failing test, and a wire that trips."""

import os
import pathlib
import shutil
import socket
import socketserver
import threading

from process import end_leftovers, refuse_when_ending

FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": (
        "import unittest\n\nimport calc\n\n\nclass CalcTest(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n"
    ),
}


class Tripwire:
    """A proxy that agents are told to use for everything but loopback. Whatever reaches it is a connection too many."""

    def __init__(self):
        self.asked = []
        wire = self

        class Refuse(socketserver.StreamRequestHandler):
            def handle(self):
                line = self.rfile.readline(4096).decode(errors="replace").strip()
                wire.asked.append(line)
                self.wfile.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refuse)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class World:
    def __init__(self, folder):
        refuse_when_ending()
        self.folder = pathlib.Path(folder)
        self.home = self.folder / "home"
        self.project = self.folder / "project"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.home.mkdir(parents=True)
        (self.folder / "tmp").mkdir()
        self.project.mkdir()
        for name, text in FILES.items():
            (self.project / name).write_text(text)
        self.tripwire = Tripwire()

    def environment(self):
        """What every agent gets. Nothing is inherited but PATH: a key or a proxy of this machine has no business here."""
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "PWD": str(self.project),
            "TMPDIR": str(self.folder / "tmp"),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "TERM": "xterm-256color",
            # Tests that the agents run leave no caches, whose bytes hold the time of their source.
            "PYTHONDONTWRITEBYTECODE": "1",
            **dict.fromkeys(names, self.tripwire.url),
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    @staticmethod
    def free_port():
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            return one.getsockname()[1]

    def close(self):
        end_leftovers(self.home)
        self.tripwire.close()
