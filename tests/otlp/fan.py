"""Passes every request on to several backends, so that all of them get the same points.

Arguments: a file with the backends, one a line: name, address and path; and a file that gets the own port.
"""

import http.server
import os
import sys
import urllib.request

with open(sys.argv[1], encoding="ascii") as file:
    TARGETS = [line.split()[1] + line.split()[2] for line in file]


class Fan(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = 200
        for target in TARGETS:
            request = urllib.request.Request(target, body, {"Content-Type": self.headers["Content-Type"]})
            try:
                with urllib.request.urlopen(request, timeout=5) as answer:
                    answer.read()
            except urllib.error.HTTPError as error:
                print(target, error, error.read()[:500], flush=True)
                status = 400
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fan)
with open(sys.argv[2] + ".new", "w", encoding="ascii") as file:
    file.write(str(server.server_port))
os.replace(sys.argv[2] + ".new", sys.argv[2])
server.serve_forever()
