"""opencode: its server, prompted over HTTP as its own clients do. The exporter is led to it through a proxy."""

import json
import urllib.request

from exporter import until
from models.chat import Chat
from models.server import call
from process import Running

from .agent import LONG, Agent
from .proxy import Proxy


class Opencode(Agent):
    source = "opencode"
    model_kind = Chat
    is_server = True
    # It looks for its library of plugins in the background when it starts, and goes on without.
    unavoidable = ("registry.npmjs.org",)

    def configure(self):
        model = {"name": "Scripted", "tool_call": True}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Scripted",
            "options": {"baseURL": f"{self.model.url}/v1", "apiKey": "none"},
            "models": {"scripted": model},
        }
        config = {
            "autoupdate": False,
            "share": "disabled",
            "model": "scripted/scripted",
            "small_model": "scripted/scripted",
            "provider": {"scripted": provider},
        }
        folder = self.world.home / ".config/opencode"
        folder.mkdir(parents=True)
        self.config_file = folder / "opencode.json"
        self.config_file.write_text(json.dumps(config))
        self.proxy = Proxy(self.port)
        self.session = None

    def environment(self):
        return self.world.environment() | {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        }

    def exporter_config(self):
        return f'servers = ["http://127.0.0.1:{self.proxy.port}"]\n'

    def launch(self, interactive=False):
        if interactive:
            config = json.loads(self.config_file.read_text())
            self.config_file.write_text(json.dumps(config | {"permission": {"edit": "ask"}}))
        argv = [self.binary, "serve", "--hostname", "127.0.0.1", "--port", str(self.port)]
        self.process = Running(argv, self.log, self.environment(), self.world.project)
        # A connection that it accepts in the second before is never answered, so its own word is waited for.
        until(120, self.process, lambda: "server listening on" in self.process.tail(), "the server listens")

    def start(self, prompt, interactive=False):
        self.session = self.ask_for("POST", "/session", {})["id"]
        self.ask_for("POST", f"/session/{self.session}/prompt_async", {"parts": [{"type": "text", "text": prompt}]})

    def ask_for(self, method, path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"{}")
        except OSError:
            return None

    def idle(self):
        """Whether the last answer is complete and the server has nothing to do."""
        messages = self.ask_for("GET", f"/session/{self.session}/message") or []
        last = messages[-1]["info"] if messages else {}
        return bool(last.get("time", {}).get("completed")) and self.ask_for("GET", "/session/status") == {}

    def finish(self, seconds=120):
        """The task's end is the session's idleness; the server goes on until it is told to end."""
        until(seconds, self.process, lambda: self.model.spent() and self.idle(), "the session is idle")
        return self.session_end()

    def session_end(self):
        messages = self.ask_for("GET", f"/session/{self.session}/message")
        return [each["info"].get("finish") for each in messages]

    def stop(self):
        self.process.terminate()
        return super().stop()

    def allow(self):
        asked = []

        def pending():
            asked[:] = self.ask_for("GET", "/permission") or []
            return asked

        until(60, self.process, pending, "the server lists the permission")
        self.ask_for("POST", f"/permission/{asked[0]['id']}/reply", {"reply": "once"})

    def close(self):
        super().close()
        self.proxy.close()

    def read(self):
        return call("read", filePath=self.calc)

    def edit(self):
        return call("edit", filePath=self.calc, oldString="a - b", newString="a + b")

    def test(self, redirect=""):
        return call("bash", command=f"python3 -m unittest{redirect}", description="Runs the tests")

    def long(self):
        return call("bash", command=LONG, description="Waits")

    def escalate(self):
        """Editing is what its configuration makes it ask for."""
        return self.edit()
