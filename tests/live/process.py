"""Processes of a scenario: each in a group of its own, its output in a file, gone when the scenario is over."""

import fcntl
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios
import threading

# What a program sends to a terminal beside text.
ESCAPES = re.compile(r"(?:\x1b\[[0-9;?<=>]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.)+")

# Everything that was started and not yet ended, so that a signal leaves nothing behind.
ALIVE = set()

# Set when all has to end, so that threads start nothing more.
ENDING = threading.Event()


def end_all():
    ENDING.set()
    for each in list(ALIVE):
        each.close()


def refuse_when_ending():
    if ENDING.is_set():
        raise RuntimeError("everything is being ended")


def end_leftovers(home):
    """Ends what an agent set free in a group of its own: all that was told to live in this home."""
    mark = f"HOME={home}".encode()
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:
            pass  # It ended by itself, or it is somebody else's.


class Running:
    """A process whose output goes to a file."""

    def __init__(self, argv, log, env, cwd):
        self.log = log
        refuse_when_ending()
        with open(log, "ab") as out:
            self.child = subprocess.Popen(
                argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        ALIVE.add(self)

    @property
    def pid(self):
        return self.child.pid

    def ended(self):
        return self.child.poll() is not None

    def wait(self, seconds):
        return self.child.wait(seconds)

    def kill(self):
        """SIGKILL to the agent alone, as the kernel does when memory runs out: its own children live on."""
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def terminate(self):
        self.child.send_signal(signal.SIGTERM)

    def close(self):
        """Ends the whole group, also what outlived the process that began it."""
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()
        ALIVE.discard(self)

    def tail(self, size=3000):
        with open(self.log, "rb") as file:
            return file.read()[-size:].decode(errors="replace")


class Terminal(Running):
    """A process that believes a person sits at it: it owns a pseudo-terminal, and what it draws goes to the file."""

    def __init__(self, argv, log, env, cwd):
        self.log = log
        refuse_when_ending()
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.child = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        ALIVE.add(self)
        os.close(slave)
        threading.Thread(target=self.copy, daemon=True).start()

    def copy(self):
        # A terminal that nobody reads fills up and stops the program; the file is opened once to keep the order.
        with open(self.log, "ab", buffering=0) as out:
            while True:
                try:
                    data = os.read(self.master, 65536)
                except OSError:
                    return
                if not data:
                    return
                out.write(data)
                self.reply(data)

    def reply(self, data):
        """Answers what programs ask a terminal before they draw: where the cursor is, and what it can do."""
        if b"\x1b[6n" in data:
            self.type("\x1b[1;1R")
        if b"\x1b[c" in data:
            self.type("\x1b[?1;2c")

    def type(self, text):
        os.write(self.master, text.encode())

    def tail(self, size=3000):
        """What was drawn last, without the commands that place and colour it."""
        return ESCAPES.sub(" ", super().tail(4 * size))[-size:]
