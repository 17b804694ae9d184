"""Stands between the exporter and a server, passes everything on as it comes, and remembers what was asked for."""

import http.client
import http.server
import re
import threading

# What a passive reader may ask for: some GETs, and one POST that reads (it carries the sequences already known).
READING_POSTS = {"/sync/history"}
READING_GETS = re.compile(
    r"/(?:global/event|experimental/session|permission|question|session(?:/status|/ses_\w+/message)?"
    r"|api/session/(?:active|ses_\w+/(?:history|permission|question)))"
)


def reads(method, path):
    if method == "GET":
        return READING_GETS.fullmatch(path) is not None
    return method == "POST" and path in READING_POSTS


class Proxy:
    def __init__(self, target):
        self.requests = []
        self.lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def __getattr__(self, name):
                # Every method goes the same way, also one that nobody thought of.
                if name.startswith("do_"):
                    return self.forward
                raise AttributeError(name)

            def forward(self):
                with proxy.lock:
                    proxy.requests.append((self.command, self.path))
                self.close_connection = True
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                upstream = http.client.HTTPConnection("127.0.0.1", target, timeout=600)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "host")}
                try:
                    upstream.request(self.command, self.path, body or None, headers)
                    answer = upstream.getresponse()
                except OSError:
                    # A server that is gone refuses connections; a proxy can only hang up.
                    return
                try:
                    self.send_response_only(answer.status, answer.reason)
                    for name, value in answer.getheaders():
                        if name.lower() not in ("connection", "transfer-encoding"):
                            self.send_header(name, value)
                    self.send_header("connection", "close")
                    self.end_headers()
                    while piece := answer.read1(65536):
                        self.wfile.write(piece)
                        self.wfile.flush()
                except (OSError, http.client.HTTPException):
                    pass
                finally:
                    upstream.close()

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def offences(self):
        """Requests that a passive reader has no business to make."""
        with self.lock:
            asked = list(self.requests)
        return [f"{method} {path}" for method, path in asked if not reads(method, path.split("?")[0])]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
