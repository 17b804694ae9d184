"""Codex CLI: `codex exec` for tasks, the interactive program in a pseudo-terminal where a person has to answer."""

from models.responses import Responses
from models.server import call
from process import Running, Terminal

from .agent import LONG, Agent

CONFIG = """\
model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false
suppress_unstable_features_warning = true
approval_policy = "on-request"
sandbox_mode = "danger-full-access"

[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

# These fetch catalogues from the network on their own account.
[features]
plugins = false
remote_plugin = false
apps = false
api_key_model_discovery = false
# Lets the model ask a person in the usual mode, too: the one wait that the files of Codex show for certain.
default_mode_request_user_input = true

[projects."{project}"]
trust_level = "trusted"

# What the interactive program would else ask or announce before it takes a prompt.
[tui]
show_tooltips = false
screen_reader_detection_done = true

[tui.model_availability_nux]
"gpt-6.1-sol" = 1

[notice.model_migrations]
"gpt-5.5" = "gpt-6-sol"
"""

PATCH = """\
*** Begin Patch
*** Update File: calc.py
@@
 def add(a, b):
-    return a - b
+    return a + b
*** End Patch
"""


class Codex(Agent):
    source = "codex"
    model_kind = Responses
    # The interactive program looks for an announcement there each time it starts.
    unavoidable = ("raw.githubusercontent.com",)

    def configure(self):
        folder = self.world.home / ".codex"
        folder.mkdir()
        (folder / "config.toml").write_text(CONFIG.format(url=self.model.url, project=self.world.project))

    def start(self, prompt, interactive=False):
        if interactive:
            # Without its daemon the program itself writes the session, and nothing outlives the scenario. A sandbox is
            # what escalated calls ask to leave.
            argv = [self.binary, "--no-daemon", "--sandbox", "workspace-write", prompt]
        else:
            argv = [self.binary, "exec", "--skip-git-repo-check", prompt]
        kind = Terminal if interactive else Running
        self.process = kind(argv, self.log, self.environment(), self.world.project)

    def allow(self):
        self.press("y")

    def choose(self):
        self.press("\r")

    def read(self):
        return call("exec_command", cmd="cat calc.py")

    def edit(self):
        return call("apply_patch", text=PATCH)

    def test(self, redirect=""):
        return call("exec_command", cmd=f"python3 -m unittest{redirect}")

    def long(self):
        return call("exec_command", cmd=LONG, yield_time_ms=30000)

    def escalate(self):
        reason = "It needs to run outside of the sandbox."
        return call("exec_command", cmd="touch made", sandbox_permissions="require_escalated", justification=reason)

    def ask(self):
        """A question with two answers, of which the first is marked."""
        options = [{"label": each, "description": f"Takes {each}"} for each in ("one", "two")]
        question = {"id": "which", "header": "Which", "question": "Which one?", "options": options}
        return call("request_user_input", questions=[question])
