"""What the scripted models share: a script that is consumed request by request, and a record of every body.

A script is a list of steps, and a step is what the model answers to one request:

- `say("text")` ends the turn with a message;
- `call(tool, **arguments)` asks for tool calls, a list of them for several at once;
- `HANG` takes the request and never answers.

Ids in answers come from the number of the request alone, so that two runs of one script differ only by the agent.
"""

import http.server
import json
import threading

HANG = {"hang": True}


def say(text):
    return {"text": text}


def call(tool, **arguments):
    """A call with arguments; `text=` alone stands for a tool that takes free text instead of JSON."""
    return {"calls": [(tool, arguments)]}


class Model:
    """A running server. Subclasses speak a protocol: `is_main`, `answer`, and `side` for requests beside the task."""

    #: Path whose POSTs ask the model for an answer.
    path = None

    def __init__(self, script, port=0):
        self.script = list(script)
        #: Bodies of the requests that belong to the task, in order.
        self.bodies = []
        #: Bodies of others (a title, a summary of a file), whose order among the rest is the agent's affair.
        self.side_bodies = []
        #: Requests for anything but an answer.
        self.others = []
        self.lock = threading.Lock()
        self.released = threading.Event()
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.plain(200, {})

            def do_GET(self):
                model.take_other(self)

            def do_POST(self):
                model.take(self, self.rfile.read(int(self.headers.get("content-length") or 0)))

            def plain(self, code, value):
                body = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def stream(self):
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True

            def event(self, value, name=None):
                head = f"event: {name}\n" if name else ""
                data = value if isinstance(value, str) else json.dumps(value)
                self.wfile.write(f"{head}data: {data}\n\n".encode())
                self.wfile.flush()

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # An agent that was killed leaves its connections; that is what some scenarios are about.

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, handler, raw):
        if handler.path.split("?")[0] != self.path:
            return self.take_other(handler)
        body = json.loads(raw)
        with self.lock:
            main = self.is_main(body)
            number = len(self.bodies)
            (self.bodies if main else self.side_bodies).append(raw)
        if not main:
            return self.answer(handler, body, "side", say("A small task"))
        step = self.script[number] if number < len(self.script) else say("Nothing is left to do.")
        if step is HANG:
            handler.close_connection = True
            return self.released.wait()
        return self.answer(handler, body, f"{number:04d}", step)

    def take_other(self, handler):
        with self.lock:
            self.others.append(f"{handler.command} {handler.path}")
        handler.plain(404, {"error": {"message": "not found", "type": "not_found_error"}})

    def is_main(self, body):
        """Whether a request belongs to the task: those that offer no tools are for titles and the like."""
        return bool(body.get("tools"))

    def spent(self):
        """Whether every step of the script was asked for."""
        return len(self.bodies) >= len(self.script)

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
