"""What the agents have in common: one process that a scenario drives."""

import time

from exporter import until

# A command that takes longer than any scenario. Claude Code refuses a plain `sleep`.
LONG = "python3 -c 'import time; time.sleep(300)'"


class Agent:
    #: The exporter's name of it.
    source = None
    #: The scripted model that speaks its protocol.
    model_kind = None
    #: Whether it is asked over HTTP, so that the exporter is led through a recording proxy.
    is_server = False
    #: Hosts it asks for that no setting keeps it from; the wire refuses them like all others.
    unavoidable = ()
    #: Names of the processes' outputs, for a failure's report.
    log_name = "agent.log"

    def __init__(self, world, binary, model, port=None):
        self.world = world
        self.binary = str(binary)
        self.model = model
        #: Where a server listens.
        self.port = port or world.free_port()
        self.process = None
        self.log = world.folder / self.log_name
        self.calc = str(world.project / "calc.py")
        self.configure()

    def configure(self):
        raise NotImplementedError

    def environment(self):
        return self.world.environment()

    def exporter_config(self):
        """Keys of its table in the exporter's configuration."""
        return ""

    def launch(self, interactive=False):
        """Starts what has to run before anything can be asked of it: nothing, unless it is a server."""

    def ended(self):
        return self.process is not None and self.process.ended()

    def finish(self, seconds=120):
        """Waits for the end of the task. The exit code is what a caller of the agent sees of it."""
        return self.process.wait(seconds)

    def stop(self):
        """Ends what goes on after a task's end, as its user would; answers the exit code."""
        return self.process.wait(60)

    def strayed(self):
        """Connections that it wanted to make although its configuration rules them out."""
        return [line for line in self.world.tripwire.asked if not any(f" {host}:" in line for host in self.unavoidable)]

    def press(self, key):
        """Presses a key until the model is asked again: a dialog that was just drawn does not take one yet."""
        before, pressed = len(self.model.bodies), 0

        def heard():
            nonlocal pressed
            if time.monotonic() > pressed + 3:
                pressed = time.monotonic()
                self.process.type(key)
            return len(self.model.bodies) > before

        until(60, self.process, heard, "the model is asked again")

    def kill(self):
        self.process.kill()

    def close(self):
        if self.process:
            self.process.close()

    def tail(self, size=3000):
        return self.process.tail(size) if self.process else "not started"
