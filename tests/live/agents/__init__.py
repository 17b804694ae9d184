"""The agents: how each is configured to talk to a scripted model alone, started, answered and ended.

All have the same face: `Agent(world, tools, model)`, then `start(prompt)`, `allow()`, `finish()`, `kill()`, `close()`; and
their vocabulary of tools: `read()`, `edit()`, `test()`, `escalate()`.
"""

import platform

from .claude_code import ClaudeCode
from .codex import Codex
from .opencode import Opencode

AGENTS = {each.source: each for each in (ClaudeCode, Codex, Opencode)}


def binaries(tools):
    """The native program of each agent: the packages' own launchers need a download or a newer Node, these need nothing."""
    modules = tools / "node_modules"
    arch, triple = {
        "x86_64": ("x64", "x86_64-unknown-linux-musl"),
        "aarch64": ("arm64", "aarch64-unknown-linux-musl"),
    }[platform.machine()]
    return {
        "claude_code": modules / f"@anthropic-ai/claude-code-linux-{arch}/claude",
        "codex": modules / f"@openai/codex-linux-{arch}/vendor/{triple}/bin/codex",
        "opencode": modules / f"opencode-linux-{arch}/bin/opencode",
    }
