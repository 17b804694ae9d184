"""Passes scrapes on, asking for the classic text format, which Prometheus cannot be told to ask for before 2.49.

Arguments: the port to forward to, and a file that gets the own port once requests are served.
"""

import http.server
import os
import sys
import urllib.request

TARGET = int(sys.argv[1])


class Relay(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        request = urllib.request.Request(f"http://127.0.0.1:{TARGET}{self.path}", headers={"Accept": "text/plain"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            kind, body = answer.headers["Content-Type"], answer.read()
        classic = kind.startswith("text/plain")
        self.send_response(200 if classic else 502)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Relay)
with open(sys.argv[2] + ".new", "w", encoding="ascii") as file:
    file.write(str(server.server_port))
os.replace(sys.argv[2] + ".new", sys.argv[2])
server.serve_forever()
