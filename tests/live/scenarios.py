"""What the agents are driven to, and what the exporter has to say about it. Expectations are data: exporter.py tells how
they are read. Those under `also` hold for one agent only."""

from dataclasses import dataclass, field

from models.server import HANG, say


@dataclass
class Phase:
    """Something that is done (a method of the agent), then all that has to be seen within so many seconds."""

    expect: list
    also: dict = field(default_factory=dict)
    do: str = None
    within: float = 60


@dataclass
class Scenario:
    name: str
    script: object
    phases: list
    #: Lines of the exporter's `[thresholds]`.
    thresholds: str = ""
    interactive: bool = False
    agents: tuple = ("claude_code", "codex", "opencode")
    prompt: str = "Fix add in calc.py and run the tests."


def state(name, reason):
    return [
        f'agent_session_state{{state="{name}"}} == 1',
        "agent_session_state == 1",  # exactly one of the ten holds
        f'agent_session_state_reason{{reason="{reason}"}} == 1',
        f'status.state == "{name}"',
        f'status.stateReason == "{reason}"',
    ]


def ended(name, reason):
    """An ended session keeps only the series that say so; the answer still has everything."""
    return [*state(name, reason), "agent_session_end_timestamp_seconds > 0", "agent_session_in_flight_calls == none"]


READ_ONE = 'agent_session_progress_events_total{kind="file_read"} == 1'
CALLED_ONE = 'agent_session_progress_events_total{kind="tool_call"} == 1'

TASK = Scenario(
    name="task",
    script=lambda agent: [agent.read(), agent.edit(), agent.test(), say("Add was fixed, the test passes.")],
    phases=[
        Phase(
            do="finish",
            expect=[
                'agent_session_progress_events_total{kind="file_modified",high_value="true"} == 1',
                'agent_session_progress_events_total{kind="test_passed",high_value="true"} == 1',
                'agent_session_turns_total{outcome="completed"} == 1',
                'agent_session_turns_total == 1',
                "agent_session_started_total == 1",
                "status.calls.total == 3",
                "status.calls.failed == 0",
                "status.calls.inFlight == 0",
                'agent_session_tool_calls_total{outcome="ok"} == 3',
                "status.usage.outputTokens > 0",
                "status.lastProgressAt != none",
                "status.waitingForUser == false",
                "status.actionRequired == none",
            ],
            also={
                "claude_code": [*ended("completed", "turn_complete"), READ_ONE],
                # `codex exec` is one run, and it reads files with commands.
                "codex": [*ended("completed", "run_complete"), CALLED_ONE],
                "opencode": [*ended("completed", "turn_complete"), READ_ONE],
            },
        )
    ],
)

PERMISSION = Scenario(
    name="permission",
    agents=("claude_code", "opencode"),
    interactive=True,
    script=lambda agent: [agent.read(), agent.escalate(), say("Add was fixed.")],
    phases=[
        Phase(
            expect=[
                *state("waiting_for_user", "permission"),
                "agent_session_pending_user_actions == 1",
                'agent_session_oldest_pending_user_action_timestamp_seconds{kind="permission",certainty="certain"} > 0',
                "status.waitingForUser == true",
                'status.actionRequired.kind == "permission"',
                "status.actionRequired.count == 1",
            ],
        ),
        Phase(
            do="allow",
            expect=[
                *ended("completed", "turn_complete"),
                'agent_session_user_actions_total{kind="permission"} == 1',
                'agent_session_progress_events_total{kind="file_modified",high_value="true"} == 1',
                "status.waitingForUser == false",
            ],
        ),
    ],
)

# The files of Codex never show an approval that is open. What they show is a call that asked to leave the sandbox and has
# no output: a probable dialog after `probable_seconds`, which is no pending action.
PROBABLE = Scenario(
    name="permission",
    agents=("codex",),
    interactive=True,
    thresholds="probable_seconds = 3",
    prompt="Make a file.",
    script=lambda agent: [agent.escalate(), say("The file was made.")],
    phases=[
        Phase(
            expect=[
                *state("waiting_for_user", "probable"),
                "agent_session_pending_user_actions == none",
                'agent_session_oldest_pending_user_action_timestamp_seconds{certainty="probable"} > 0',
                "status.waitingForUser == none",
                'status.actionRequired.certainty == "probable"',
            ],
        ),
        Phase(do="allow", expect=[*ended("completed", "turn_complete"), "status.actionRequired == none"]),
    ],
)

# A question is a call of its own, and a call without output is certainly open.
QUESTION = Scenario(
    name="question",
    agents=("codex",),
    interactive=True,
    prompt="Ask me which one.",
    script=lambda agent: [agent.ask(), say("It is one.")],
    phases=[
        Phase(
            expect=[
                *state("waiting_for_user", "question"),
                "agent_session_pending_user_actions == 1",
                'agent_session_oldest_pending_user_action_timestamp_seconds{kind="question",certainty="certain"} > 0',
                "status.waitingForUser == true",
                'status.actionRequired.kind == "question"',
            ],
        ),
        Phase(
            do="choose",
            expect=[
                *ended("completed", "turn_complete"),
                'agent_session_user_actions_total{kind="question"} == 1',
                "status.actionRequired == none",
            ],
        ),
    ],
)

READS = 40

LOOP = Scenario(
    name="loop",
    script=lambda agent: [agent.read()] * READS + [HANG],
    prompt="Read calc.py until it changes.",
    phases=[
        Phase(
            within=120,
            expect=[
                *state("stalled", "spinning"),
                f"agent_session_calls_since_progress == {READS}",
                f"agent_session_window_calls == {READS}",
                # Only the first read brought something new.
                "agent_session_no_new_ratio >= 0.95",
                f"agent_session_repeated_call_max >= {READS - 1}",
                'agent_session_stalls_total{reason="spinning"} == 1',
                'agent_session_progress_events_total{high_value="true"} == 0',
                "agent_session_last_progress_timestamp_seconds == none",
                "status.lastProgressAt == none",
            ],
        )
    ],
)

HANGING = Scenario(
    name="hang",
    script=lambda agent: [agent.read(), HANG],
    thresholds="silent_seconds = 5",
    phases=[
        # Running first: a model that thinks is no stall.
        Phase(expect=[*state("running", "working"), "status.calls.total == 1"]),
        Phase(
            expect=[
                *state("stalled", "silent"),
                "agent_session_seconds_since_activity >= 5",
                "agent_session_in_flight_calls == 0",
                'agent_session_stalls_total{reason="silent"} == 1',
            ],
        ),
    ],
)

# Killed in the middle of a command, which lives on: that it runs says nothing about the agent.
KILL = Scenario(
    name="kill",
    script=lambda agent: [agent.read(), agent.long()],
    phases=[
        Phase(
            expect=[
                *state("running", "working"),
                "status.calls.total == 2",
                "agent_session_in_flight_calls == 1",
                "agent_session_exporter_source_up == 1",
            ],
        ),
        Phase(
            do="kill",
            expect=['agent_session_turns_total{outcome="completed"} == 0', 'agent_session_state{state="completed"} == 0'],
            also={
                "claude_code": ended("failed", "process_gone"),
                "codex": ended("failed", "process_gone"),
                # A server that is gone leaves open how its sessions ended. Their state says source_lost after five
                # minutes, which is tested elsewhere with clocks that can be turned; that the source is down shows now.
                "opencode": ["agent_session_exporter_source_up == 0"],
            },
        ),
    ],
)

ALL = [TASK, PERMISSION, PROBABLE, QUESTION, LOOP, HANGING, KILL]
