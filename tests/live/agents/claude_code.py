"""Claude Code: `claude -p` for tasks, the interactive program in a pseudo-terminal where a person has to answer."""

import json

from models.messages import Messages
from models.server import call
from process import Running, Terminal

from .agent import LONG, Agent

# The last 20 characters stand in the file of settings as approved, else the program asks whether to use the key.
KEY = "no-key-is-needed-for-a-scripted-model"


class ClaudeCode(Agent):
    source = "claude_code"
    model_kind = Messages

    def configure(self):
        settings = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
            "projects": {str(self.world.project): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
        }
        (self.world.home / ".claude.json").write_text(json.dumps(settings))

    def environment(self):
        return self.world.environment() | {
            "ANTHROPIC_BASE_URL": self.model.url,
            "ANTHROPIC_API_KEY": KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def start(self, prompt, interactive=False):
        argv = [self.binary, "--model", "claude-sonnet-4-5"]
        if interactive:
            argv += ["--permission-mode", "default", prompt]
        else:
            argv += ["-p", prompt, "--allowedTools", "Read,Edit,Bash"]
        kind = Terminal if interactive else Running
        self.process = kind(argv, self.log, self.environment(), self.world.project)

    def allow(self):
        # "Yes" is the marked answer of the dialog.
        self.press("\r")

    def read(self):
        return call("Read", file_path=self.calc)

    def edit(self):
        return call("Edit", file_path=self.calc, old_string="a - b", new_string="a + b")

    def test(self, redirect=""):
        return call("Bash", command=f"python3 -m unittest{redirect}", description="Runs the tests")

    def long(self):
        return call("Bash", command=LONG, description="Waits")

    def escalate(self):
        """Editing is what it asks for."""
        return self.edit()
