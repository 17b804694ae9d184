"""What the boards show. They ask for what exporters tell and for open alerts, not for recorded rules, which loaded history
does not have. Queries follow the rules of alerts/: one-hot families are filtered with `== 1`, sessions are matched with `and`
by source, project and session, and nothing joins on what may have two series."""

from panels import (
    INSTANCE, ONE, ONE_RUN, PROJECT, RUN, RUN_STATES, RUNBOOK_PANEL, SESSION, SOURCE, STATES, UIDS, board, coded, graph, note,
    row, stat, table, timeline, variable,
)

STATE = {"state": STATES}
SEVERITY = {"severity": {"critical": "red", "warning": "orange", "info": "blue"}}
# What an alert is known by.
ALERT = "alertname, severity, category, source, project, session, orchestration, spec, model, endpoint"
ALERT_COLUMNS = ["severity", "alertname", "Since", *"category source project session orchestration spec model endpoint".split()]
FIRING = 'alertname=~"Agent.*",alertname!="AgentSessionExporterWatchdog"'


# === Queries that several panels share ===


def by_session(expr, more=""):
    """The greatest value per session; `more` are labels to keep."""
    return f"max by ({ONE}{more}) ({expr})"


def in_state(states):
    """Sessions in one of some states, to be matched with."""
    return f'and on ({ONE}) (agent_session_state{{{SESSION},state=~"{states}"}} == 1)'


def properties(states):
    """What a row about a session may link to and be told by."""
    return by_session(f"agent_session_info{{{SESSION}}}", ", agent, url") + f"\n  {in_state(states)}"


def hourly(metric, selector, by):
    """Rare things, counted over the hour before."""
    return f"sum by ({by}) (increase({metric}{{{selector}}}[1h]))"


def per_second(metric, selector, by):
    """Frequent things."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def quarter(metric, selector, by):
    """What comes in bursts, per second over a quarter of an hour, whatever the time between scrapes."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}[15m]))"


def quantile(share, metric, selector, by):
    """A quantile of a histogram over the hour before: such things are too rare for less."""
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{{{selector}}}[1h])))"


def count_of(states):
    """How many sessions are in a state."""
    return f'count(agent_session_state{{{SESSION},state=~"{states}"}} == 1) or vector(0)'


def of_model(states):
    """How many sessions of a model are in some states."""
    return f'sum by (model, provider) (agent_model_sessions{{{SOURCE},state=~"{states}"}})'


def open_alerts(selector):
    """Alerts that fire, by how long they have been active."""
    since = f"max by ({ALERT}) (time() - ALERTS_FOR_STATE{{{selector}}})"
    firing = f'max by ({ALERT}) (ALERTS{{{selector},alertstate="firing"}})'
    return [(f"{since}\n  and {firing}", "Since")]


def ours(metric):
    """A metric that other programs have too, of exporters like ours alone."""
    return f"{metric}{{{INSTANCE}}} and on (job, instance) agent_session_exporter_build_info"


# === Boards ===


def needs_you(runbook):
    """Who waits, who is stuck, since when."""
    waiting, stuck = "waiting_for_user", "running|stalled"
    oldest = f"agent_session_oldest_pending_user_action_timestamp_seconds{{{SESSION}}}"
    return [
        stat("Waiting for you", "Sessions that cannot go on before a person answers.", count_of(waiting), bad=(1, "orange")),
        stat("Stalled", "Sessions with an open turn that do not get on: silent, in a loop, or without a result.",
             count_of("stalled"), bad=(1, "red")),
        stat("Blocked", "Sessions that something else than a person holds up, such as a rate limit.",
             count_of("blocked"), bad=(1, "purple")),
        stat("Working", "Sessions with an open turn that get on.", count_of("running|progressing")),
        stat("Open alerts", "Alerts about agents that fire now, without the watchdog, which always does.",
             f'count(ALERTS{{{FIRING},alertstate="firing"}}) or vector(0)', bad=(1, "red")),
        stat("Exporters", "Whether all exporters that were seen within a day can be scraped.",
             "min(up and on (job, instance) last_over_time(agent_session_exporter_build_info[1d]))",
             mappings=[{"type": "value", "options": {"0": {"text": "down", "color": "red", "index": 0},
                                                     "1": {"text": "up", "color": "green", "index": 1}}}]),
        table(
            "Needs you now", "Sessions that wait for a person, the longest wait first. What is probable is guessed from a call "
            "that lasts. Answer in the agent's own window.",
            [(by_session(f"time() - {oldest}", ", kind, certainty") + f"\n  {in_state(waiting)}", "Waiting"),
             (properties(waiting), None)],
            ["Waiting", "source", "project", "session", "kind", "certainty", "agent", "url"], sort="Waiting", units={"Waiting": "s"},
        ),
        table(
            "Alive but no progress", "Sessions with an open turn that changed nothing for five minutes or are stalled, the longest "
            "first. Nothing new: share of the last calls that brought nothing.",
            [(by_session(f"agent_session_seconds_since_progress{{{SESSION}}}") + f"\n  {in_state(stuck)}", "Without progress"),
             (by_session(f"agent_session_seconds_since_activity{{{SESSION}}}") + f"\n  {in_state(stuck)}", "Silent for"),
             (by_session(f"agent_session_calls_since_progress{{{SESSION}}}") + f"\n  {in_state(stuck)}", "Calls"),
             (by_session(f"agent_session_no_new_ratio{{{SESSION}}}") + f"\n  {in_state(stuck)}", "Nothing new"),
             (by_session(f"agent_session_state_reason{{{SESSION}}} == 1", ", reason") + f"\n  {in_state(stuck)}", None),
             (properties(stuck), None)],
            ["Without progress", "source", "project", "session", "reason", "Silent for", "Calls", "Nothing new", "agent", "url"],
            sort="Without progress", units={"Without progress": "s", "Silent for": "s", "Nothing new": "percentunit"},
        ),
        table("Open alerts", "Alerts that fire now, from the rules' own series. The name leads to the runbook.",
              open_alerts(FIRING), ALERT_COLUMNS, sort="Since", units={"Since": "s"}, colours=SEVERITY),
        table(
            "Blocked", "Sessions that are held up, the longest first; until when, where that was announced.",
            [(by_session(f"time() - agent_session_blocked_since_timestamp_seconds{{{SESSION}}}", ", reason")
              + f"\n  {in_state('blocked')}", "Blocked for"),
             (by_session(f"agent_session_blocked_until_timestamp_seconds{{{SESSION}}}") + f" * 1000\n  {in_state('blocked')}", "Until"),
             (by_session(f"agent_session_retry_attempt{{{SESSION}}}") + f"\n  {in_state('blocked')}", "Attempt")],
            ["Blocked for", "source", "project", "session", "reason", "Until", "Attempt"], size=(12, 8), sort="Blocked for",
            units={"Blocked for": "s", "Until": "dateTimeAsIso"},
        ),
        table(
            "Failed or lost", "Sessions that failed or went out of sight, and why.",
            [(by_session(f"agent_session_state{{{SESSION},state=~\"failed|unknown\"}} == 1", ", state"), None),
             (by_session(f"agent_session_state_reason{{{SESSION}}} == 1", ", reason") + f"\n  {in_state('failed|unknown')}", None),
             (properties("failed|unknown"), None)],
            ["state", "reason", "source", "project", "session", "agent", "url"], size=(12, 8), colours=STATE,
        ),
        note("Runbook", "What each alert means, how to look, what is normal. A copy of alerts/RUNBOOK.md.", runbook, (24, 16),
             RUNBOOK_PANEL),
    ]


def session():
    """One session, or a few."""
    label = "{{source}} {{project}} {{session}}"

    def value(name, more=""):
        return by_session(f"agent_session_{name}{{{SESSION}}}", more)

    def ago(name, more=""):
        return by_session(f"time() - agent_session_{name}_timestamp_seconds{{{SESSION}}}", more)

    return [
        table(
            "Now", "Where the session stands and why, since when, and what it is.",
            [(by_session(f"agent_session_state{{{SESSION}}} == 1", ", state"), None),
             (by_session(f"agent_session_state_reason{{{SESSION}}} == 1", ", reason"), None),
             (ago("state_since"), "For"),
             (value("phase", ", phase"), None),
             (value("current", ", mode, model, provider"), None),
             (value("info", ", agent, version, originator, parent, url"), None),
             (ago("start"), "Age")],
            ["state", "reason", "For", "source", "project", "session", "phase", "mode", "model", "provider", "agent", "version",
             "originator", "parent", "Age", "url"],
            size=(24, 6), units={"For": "s", "Age": "s"}, colours=STATE,
        ),
        timeline("State", "The state that held, over time.", coded("agent_session_state", SESSION, ONE, STATES), label, STATES),
        row("Clocks"),
        graph("Since progress and activity", "Time since the newest factual advance and since the newest work. The first that "
              "grows while the second stays low is a session that is busy for nothing.",
              [(value("seconds_since_progress"), f"progress: {label}"), (value("seconds_since_activity"), f"activity: {label}")], "s"),
        graph("Open", "How long the turn, the oldest call in flight, the oldest request to you and the obstacle have been open.",
              [(ago("turn_start"), f"turn: {label}"), (ago("oldest_in_flight_call"), f"call: {label}"),
               (ago("oldest_pending_user_action", ", kind, certainty"), f"{{{{certainty}}}} {{{{kind}}}}: {label}"),
               (ago("blocked_since", ", reason"), f"{{{{reason}}}}: {label}")], "s"),
        table("Open step", "The workflow step the session is in, by name, and for how long.",
              [(ago("step_start", ", kind, step"), "For")], ["For", "step", "kind", "source", "project", "session"],
              size=(12, 6), sort="For", units={"For": "s"}),
        table(
            "Last events", "How long ago a person prompted, a verification passed or failed, a request to stop came, the "
            "agent's own loop guard spoke, the last turn or run ended.",
            [(ago("last_prompt"), "Prompt"),
             (by_session(f'time() - agent_session_last_verification_timestamp_seconds{{{SESSION},outcome="passed"}}'), "Verified"),
             (by_session(f'time() - agent_session_last_verification_timestamp_seconds{{{SESSION},outcome="failed"}}'), "Verification failed"),
             (ago("stop_requested"), "Stop requested"), (ago("stop_acknowledged"), "Stop acknowledged"),
             (ago("last_native_stuck", ", detector"), "Guard"), (ago("end"), "End")],
            ["session", "Prompt", "Verified", "Verification failed", "Stop requested", "Stop acknowledged", "Guard", "detector",
             "End", "source", "project"],
            size=(12, 6), units=dict.fromkeys(
                ["Prompt", "Verified", "Verification failed", "Stop requested", "Stop acknowledged", "Guard", "End"], "s"),
        ),
        row("Signals"),
        graph("Calls since progress", "All calls, those of the window, repeats of one call for nothing, and the run of one error. "
              "Alerts ask for 20 calls, a window of 30, 20 repeats or 10 errors.",
              [(value("calls_since_progress"), f"calls: {label}"), (value("window_calls"), f"window: {label}"),
               (value("repeated_call_max"), f"repeated: {label}"), (value("error_streak"), f"errors: {label}")]),
        graph("Nothing new", "Share of the window's calls that brought nothing new; alerts begin at 60 %.",
              [(value("no_new_ratio"), label)], "percentunit", top=1, size=(6, 8)),
        graph("Read again", "How often the file that was read most was read over; alerts begin at 3, for those who only read at 5.",
              [(value("read_coverage_ratio"), label)], size=(6, 8)),
        graph("Turns and steps", "Turns that no person began and most entries of one step since the last advance; alerts begin at "
              "20 and 4.", [(value("turns_since_progress"), f"turns: {label}"), (value("step_entries_max"), f"entries: {label}")]),
        graph("In flight", "Calls, background tasks and sub-agents under way, requests to you and prompts that wait.",
              [(value("in_flight_calls"), f"calls: {label}"), (value("background_tasks"), f"background: {label}"),
               (value("subagents", ", state"), f"sub-agents {{{{state}}}}: {label}"),
               (value("pending_user_actions"), f"requests: {label}"), (value("queued_prompts"), f"queued prompts: {label}")]),
        row("Work and cost"),
        graph("Criteria", "Acceptance criteria by status.", [(value("criteria", ", status"), f"{{{{status}}}}: {label}")],
              size=(8, 8), stack=True),
        graph("Plan", "Items of the agent's plan by status.", [(value("plan_items", ", status"), f"{{{{status}}}}: {label}")],
              size=(8, 8), stack=True),
        graph("Retries", "The attempt under way; none where nothing is retried.", [(value("retry_attempt"), label)], size=(8, 8)),
        graph("Tokens", "Tokens of all kinds, with sub-agents.", [(value("tree_tokens"), label)], size=(8, 8)),
        graph("Cost", "What the agent said it cost, with sub-agents.", [(value("tree_cost_dollars"), label)], "currencyUSD", (8, 8)),
        graph("Context", "Share of the context window in use.", [(value("context_used_ratio"), label)], "percentunit", (8, 8), top=1),
        table("Open alerts", "Alerts about the session that fire now. The name leads to the runbook.",
              open_alerts(f"{FIRING},{SESSION}"), ALERT_COLUMNS, size=(24, 6), sort="Since", units={"Since": "s"}, colours=SEVERITY),
    ]


def fleet():
    """All sessions, tools and models."""
    return [
        graph("Sessions by state", "Root sessions by the state they are in.",
              [(f"sum by (state) (agent_sessions{{{PROJECT}}})", "{{state}}")], stack=True),
        graph("Sessions by source", "Root sessions at work, waiting, stalled or blocked, by source.",
              [(f'sum by (source) (agent_sessions{{{PROJECT},state=~"running|progressing|waiting_for_user|stalled|blocked"}})',
                "{{source}}")], stack=True),
        graph("Turns", "Turns that ended, by outcome, in the hour before.",
              [(hourly("agent_session_turns_total", PROJECT, "outcome"), "{{outcome}}")], size=(8, 8)),
        graph("Progress", "Facts of progress that moved the clock, by kind, per second over 15 minutes.",
              [(quarter("agent_session_progress_events_total", PROJECT + ',high_value="true"', "kind"), "{{kind}}")], "ops", (8, 8)),
        graph("Stalls", "Times a session became stalled, by reason, in the hour before.",
              [(hourly("agent_session_stalls_total", PROJECT, "reason"), "{{reason}}")], size=(8, 8)),
        graph("Started and ended", "Sessions that started and that told of their end, in the hour before.",
              [(hourly("agent_session_started_total", PROJECT, "source"), "started: {{source}}"),
               (hourly("agent_session_ended_total", PROJECT, "outcome"), "ended: {{outcome}}")], size=(8, 8)),
        graph("Requests to you", "Requests that were closed, by kind and how, in the hour before.",
              [(hourly("agent_session_user_actions_total", PROJECT, "kind, resolution"), "{{kind}} {{resolution}}")], size=(8, 8)),
        graph("Time until you answered", "Half of the requests, and nine of ten, were closed faster.",
              [(quantile(share, "agent_session_user_wait_seconds", SOURCE, "kind"), f"{name} {{{{kind}}}}")
               for share, name in ((0.5, "half"), (0.9, "nine of ten"))], "s", (8, 8)),
        row("Models"),
        table("Models now", "Root sessions by the model they use and their state.",
              [(f"sum by (model, provider, state) (agent_model_sessions{{{SOURCE}}} > 0)", "Sessions")],
              ["model", "provider", "state", "Sessions"], size=(8, 8), sort="Sessions", colours=STATE),
        graph("Share that does not get on", "Stalled or blocked sessions of a model, of those at work; the alert begins at half of "
              "four.",
              [(of_model("stalled|blocked") + "\n  / " + of_model("running|progressing|stalled|blocked"), "{{model}} {{provider}}")], "percentunit", (8, 8), top=1),
        graph("Retries and limits", "Retries by reason and signals of a rate limit, by model, in the hour before.",
              [(hourly("agent_session_retries_total", SOURCE, "reason, model"), "{{reason}}: {{model}}"),
               (hourly("agent_session_rate_limit_signals_total", SOURCE, "model"), "limit signals: {{model}}")], size=(8, 8)),
        graph("Tokens by model", "Tokens per second over 15 minutes, by model.",
              [(quarter("agent_session_tokens_total", SOURCE, "model"), "{{model}}")], size=(8, 8), stack=True),
        graph("Tokens by kind", "Tokens per second over 15 minutes, by kind.",
              [(quarter("agent_session_tokens_total", SOURCE, "kind"), "{{kind}}")], size=(8, 8), stack=True),
        graph("Cost by model", "US dollars in the hour before, as the agents reported them.",
              [(hourly("agent_session_cost_dollars_total", SOURCE, "model, provider"), "{{model}} {{provider}}")],
              "currencyUSD", (8, 8), stack=True),
        stat("Cost in this range", "US dollars over the time shown, as the agents reported them.",
             f"sum(increase(agent_session_cost_dollars_total{{{SOURCE}}}[$__range]))", "currencyUSD", size=(6, 4)),
        stat("Tokens in this range", "Tokens over the time shown.",
             f"sum(increase(agent_session_tokens_total{{{SOURCE}}}[$__range]))", size=(6, 4)),
        stat("Announced waiting", "Waiting that retries and rate limits announced, over the time shown.",
             f"sum(increase(agent_session_backoff_seconds_total{{{SOURCE}}}[$__range]))", "s", size=(6, 4)),
        stat("Requests to stop", "Requests to stop over the time shown.",
             f"sum(increase(agent_session_stop_requests_total{{{PROJECT}}}[$__range]))", size=(6, 4)),
        row("Calls, turns, steps"),
        graph("Calls", "The ten tools that are called most, in the hour before.",
              [(f"topk(10, {hourly('agent_session_tool_calls_total', SOURCE, 'tool')})", "{{tool}}")], size=(8, 8)),
        graph("Failing calls", "Share of a tool's calls that failed, in the hour before.",
              [(hourly("agent_session_tool_calls_total", SOURCE + ',outcome="error"', "tool") + "\n  / "
                + hourly("agent_session_tool_calls_total", SOURCE, "tool"), "{{tool}}")], "percentunit", (8, 8), top=1),
        graph("Duration of calls", "Nine of ten calls were faster, by what the tool does.",
              [(quantile(0.9, "agent_session_tool_call_duration_seconds", SOURCE, "tool_class"), "{{tool_class}}")], "s", (8, 8)),
        graph("Duration of turns", "Nine of ten turns were shorter, by outcome.",
              [(quantile(0.9, "agent_session_turn_duration_seconds", SOURCE, "outcome"), "{{outcome}}")], "s", (8, 8)),
        graph("Duration of steps", "Nine of ten workflow steps were shorter, by kind.",
              [(quantile(0.9, "agent_session_step_duration_seconds", SOURCE, "kind"), "{{kind}}")], "s", (8, 8)),
        graph("Steps", "Workflow steps that ended, by kind and outcome, in the hour before.",
              [(hourly("agent_session_steps_total", SOURCE, "kind, outcome"), "{{kind}} {{outcome}}")], size=(8, 8)),
        graph("Verifications", "Verifications by outcome, in the hour before.",
              [(hourly("agent_session_verifications_total", PROJECT, "outcome"), "{{outcome}}")], size=(8, 8)),
        graph("Loop guards", "Times an agent's own loop guard spoke, in the hour before.",
              [(hourly("agent_session_native_stuck_total", SOURCE, "source, detector"), "{{source}} {{detector}}")], size=(8, 8)),
        graph("Compactions", "Contexts that were compacted, in the hour before.",
              [(hourly("agent_session_compactions_total", PROJECT, "source"), "{{source}}")], size=(8, 8)),
    ]


def orchestration():
    """Runs of orchestrators with their specs."""
    label = "{{source}} {{project}} {{orchestration}}"

    def value(name, more=""):
        return f"max by ({ONE_RUN}{more}) (agent_orchestration_{name}{{{RUN}}})"

    def ago(name, more=""):
        return f"max by ({ONE_RUN}{more}) (time() - agent_orchestration_{name}_timestamp_seconds{{{RUN}}})"

    return [
        table(
            "Now", "Where each orchestration stands by its own word.",
            [(f"max by ({ONE_RUN}, state) (agent_orchestration_state{{{RUN}}} == 1)", None), (value("batch"), "Batch"),
             (value("batches"), "of"), (ago("start"), "Started"), (ago("last_update"), "Last update"), (ago("end"), "Ended"),
             (ago("stop_requested"), "Stop requested")],
            ["state", "source", "project", "orchestration", "Batch", "of", "Started", "Last update", "Ended", "Stop requested"],
            size=(24, 6), units=dict.fromkeys(["Started", "Last update", "Ended", "Stop requested"], "s"), colours={"state": RUN_STATES},
        ),
        timeline("State", "The state of each orchestration, over time.",
                 coded("agent_orchestration_state", RUN, ONE_RUN, RUN_STATES), label, RUN_STATES, (24, 6)),
        table(
            "Specs", "Specs that run, wait for another attempt or failed; those tried most often first.",
            [(f"max by ({ONE_RUN}, spec, state) (agent_orchestration_spec_state{{{RUN}}} == 1)", None),
             (value("spec_retries", ", spec"), "Retries"), (value("spec_turns", ", spec"), "Turns"),
             (f"max by ({ONE_RUN}, spec, class) (agent_orchestration_spec_error{{{RUN}}} == 1)", None)],
            ["spec", "state", "Retries", "class", "Turns", "source", "project", "orchestration"], size=(12, 8), sort="Retries",
            colours={"state": {"running": "blue", "pending": "#8ab8ff", "failed": "dark-red", "timeout": "red"}},
        ),
        graph("Specs by status", "Specs of the newest run by status.",
              [(value("specs", ", status"), f"{{{{status}}}}: {label}")], stack=True),
        row("Limits"),
        graph("Agents at once", "How many agents may run at once: configured, now, and at least.",
              [(value("parallel_max"), f"configured: {label}"), (value("parallel_effective"), f"now: {label}"),
               (value("parallel_floor"), f"at least: {label}")], size=(8, 8)),
        graph("Launch budget", "Agents that may be started in one window and that were, as of the newest start.",
              [(value("launch_budget"), f"budget: {label}"), (value("launch_budget_used"), f"used: {label}")], size=(8, 8)),
        graph("Signals of the run", "Signals of a rate limit, starts held back, and changes of the number of agents at once.",
              [(value("run_rate_limit_signals"), f"rate limit: {label}"), (value("run_launch_holds"), f"launch holds: {label}"),
               (value("run_throttled"), f"throttled: {label}"), (value("run_recovered"), f"recovered: {label}")], size=(8, 8)),
        graph("Waiting of the run", "Waiting that rate limits announced in the newest run.", [(value("run_backoff_seconds"), label)],
              "s", (8, 8)),
        table(
            "Newest rate limit", "The newest signal of a rate limit: how long ago, which spec, which attempt, what waiting.",
            [(ago("rate_limit_last_signal", ", spec"), "Ago"), (value("rate_limit_last_retry"), "Attempt"),
             (value("rate_limit_last_delay_seconds"), "Delay"), (value("rate_limit_launch_hold_seconds"), "Starts held")],
            ["Ago", "spec", "Attempt", "Delay", "Starts held", "source", "project", "orchestration"], size=(16, 8),
            units={"Ago": "s", "Delay": "s", "Starts held": "s"},
        ),
        table(
            "Holds and throttling", "When starts were held back, for how long and in which window; when the number of agents at "
            "once fell and rose, and whether limits move it.",
            [(ago("launch_budget_last_hold"), "Held"), (value("launch_budget_last_hold_seconds"), "Held for"),
             (value("launch_budget_window_seconds"), "Window"), (ago("parallel_last_throttled"), "Throttled"),
             (ago("parallel_last_recovered"), "Recovered"), (value("parallel_adaptive"), "Adaptive")],
            ["orchestration", "Held", "Held for", "Window", "Throttled", "Recovered", "Adaptive", "source", "project"], size=(24, 6),
            units=dict.fromkeys(["Held", "Held for", "Window", "Throttled", "Recovered"], "s") | {"Adaptive": "bool_yes_no"},
        ),
        row("Over all runs"),
        graph("Specs ended", "Specs that ended, by how, in the hour before.",
              [(hourly("agent_orchestration_specs_ended_total", PROJECT, "status"), "{{status}}")], size=(8, 8)),
        graph("Rate limits", "Signals by which limit it was, and signals of starts held back, in the hour before.",
              [(hourly("agent_orchestration_rate_limit_signals_total", PROJECT, "class"), "{{class}}"),
               (hourly("agent_orchestration_launch_hold_signals_total", PROJECT, "source"), "launch holds: {{source}}")], size=(8, 8)),
        graph("Announced waiting", "Seconds of waiting that rate limits announced, in the hour before.",
              [(hourly("agent_orchestration_rate_limit_backoff_seconds_total", PROJECT, "project"), "{{project}}")], "s", (8, 8)),
        graph("Throttled and recovered", "Changes of the number of agents at once, in the hour before.",
              [(hourly("agent_orchestration_throttled_total", PROJECT, "reason"), "throttled: {{reason}}"),
               (hourly("agent_orchestration_recovered_total", PROJECT, "project"), "recovered: {{project}}")], size=(12, 8)),
        table("Open alerts", "Alerts about orchestrations that fire now. The name leads to the runbook.",
              open_alerts(f'alertname=~"AgentOrchestration.*",{RUN}'), ALERT_COLUMNS, size=(12, 8), sort="Since",
              units={"Since": "s"}, colours=SEVERITY),
    ]


def exporter():
    """The exporter's own health."""

    def own(name, labels=""):
        return f"agent_session_exporter_{name}{{{INSTANCE}{labels}}}"

    def rate(name, by):
        return per_second(f"agent_session_exporter_{name}_total", INSTANCE, by)

    def lately(name, by):
        return hourly(f"agent_session_exporter_{name}_total", INSTANCE, by)

    return [
        table(
            "Exporters", "Builds that run, since when, and what they give series for.",
            [(f"max by (job, instance) (up{{{INSTANCE}}} and on (job, instance) last_over_time({own('build_info')}[1d]))", "Up"),
             (f"max by (job, instance, version) ({own('build_info')})", None),
             (f"max by (job, instance) (time() - ({ours('process_start_time_seconds')}))", "Running for"),
             (f"max by (job, instance) (time() - {own('counting_since_timestamp_seconds')})", "Counting for"),
             (f"max by (job, instance) (time() - {own('last_scan_timestamp_seconds')})", "Last scan"),
             (f"max by (job, instance, mode) ({own('series_mode')} == 1)", None)],
            ["instance", "job", "Up", "version", "mode", "Running for", "Counting for", "Last scan"], size=(24, 5),
            units={"Up": "bool_yes_no", "Running for": "s", "Counting for": "s", "Last scan": "s"},
        ),
        row("Sources"),
        table(
            "Sources", "Whether each endpoint or folder could be read at the last try, and which store reads it.",
            [(f"max by (instance, source, endpoint) ({own('source_up')})", "Readable"),
             (f"max by (instance, source, endpoint, store) ({own('source_info')})", None)],
            ["source", "endpoint", "Readable", "store", "instance"], size=(12, 8), units={"Readable": "bool_yes_no"},
        ),
        table(
            "Records", "Turns that are open at a source, and how long ago its newest record was read.",
            [(f"max by (instance, source) ({own('source_open_turns')})", "Open turns"),
             (f"max by (instance, source) (time() - {own('source_last_record_timestamp_seconds')})", "Last record")],
            ["source", "Open turns", "Last record", "instance"], size=(6, 8), units={"Last record": "s"}, sort="Open turns",
        ),
        table("Capabilities", "What each source can see; where it cannot, absence means nothing.",
              [(f"max by (source, capability) ({own('source_capability')})", "Seen")], ["source", "capability", "Seen"], size=(6, 8),
              units={"Seen": "bool_yes_no"}),
        graph("Records read", "Records read per second, by source.", [(rate("records", "source"), "{{source}}")], "ops", (8, 8)),
        graph("Events", "Events taken in per second, by type.", [(rate("events", "type"), "{{type}}")], "ops", (8, 8)),
        graph("Not understood", "Records of unknown kinds, and those that could not be decoded, in the hour before.",
              [(lately("unknown_records", "source, kind"), "unknown: {{source}} {{kind}}"),
               (lately("decode_errors", "source, reason"), "errors: {{source}} {{reason}}")], size=(8, 8)),
        graph("Refused and repeated", "Pushed items that were refused by reason, events that had been counted, records dated ahead, "
              "in the hour before.",
              [(lately("push_refused", "reason"), "refused: {{reason}}"), (lately("duplicates", "instance"), "duplicates: {{instance}}"),
               (lately("clock_skew_records", "instance"), "dated ahead: {{instance}}")], size=(8, 8)),
        graph("Connections", "Connections made again after a loss, in the hour before.",
              [(lately("source_reconnects", "source"), "{{source}}")], size=(8, 8)),
        graph("Disagreements", "Times a source's own word differed from the derived state, in the hour before.",
              [(lately("state_disagreements", "source"), "{{source}}")], size=(8, 8)),
        row("Inside"),
        graph("Sessions in memory", "Sessions held in memory.", [(own("sessions_tracked"), "{{instance}}")], size=(8, 8)),
        graph("Left and folded", "Sessions that lost their series or left memory, by why, and label values folded into other, in "
              "the hour before.",
              [(lately("sessions_evicted", "reason"), "left: {{reason}}"), (lately("label_overflow", "label"), "folded: {{label}}")],
              size=(8, 8)),
        graph("Watched folders", "Folders that are watched, by how; polling is slower.", [(own("watched_roots"), "{{mode}}: {{instance}}")],
              size=(8, 8)),
        graph("Queue", "Batches of events that wait to be folded.", [(own("queue_length"), "{{instance}}")], size=(8, 8)),
        graph("Ingest lag", "Time from reading a record to publishing it, of the last commit.",
              [(own("ingest_lag_seconds"), "{{instance}}")], "s", (8, 8)),
        graph("Commit time", "99 of 100 commits were faster.",
              [(f"histogram_quantile(0.99, sum by (le, instance) (rate(agent_session_exporter_store_commit_seconds_bucket{{{INSTANCE}}}"
                "[$__rate_interval])))", "{{instance}}")], "s", (8, 8)),
        graph("Commits", "Transactions per second, and those that failed and were tried again.",
              [(rate("store_commits", "instance"), "commits: {{instance}}"),
               (rate("store_commit_failures", "instance"), "failures: {{instance}}")], "ops", (8, 8)),
        graph("State file", "Size of the state file.", [(own("store_bytes"), "{{instance}}")], "bytes", (8, 8)),
        graph("CPU", "Cores in use.",
              [(f"rate(process_cpu_seconds_total{{{INSTANCE}}}[$__rate_interval])\n"
                "  and on (job, instance) agent_session_exporter_build_info", "{{instance}}")], "percentunit", (8, 8)),
        graph("Memory", "Resident memory.", [(ours("process_resident_memory_bytes"), "{{instance}}")], "bytes", (8, 8)),
        graph("To OTLP", "Spans, log records and points per second, by what became of them; nothing where no collector is named.",
              [(rate("otlp_items", "signal, result"), "{{signal}}: {{result}}")], "ops", (8, 8)),
        graph("Waiting for OTLP", "Spans and log records that wait to be sent; it grows while the collector is away.",
              [(own("otlp_spool_items"), "{{instance}}")], size=(8, 8)),
        graph("Open files", "File descriptors that are open.", [(ours("process_open_fds"), "{{instance}}")], size=(8, 8)),
        table("Open alerts", "Alerts about exporters that fire now; the watchdog always does. The name leads to the runbook.",
              open_alerts('alertname=~"AgentSessionExporter.*"'), ALERT_COLUMNS, size=(8, 8), sort="Since", units={"Since": "s"},
              colours=SEVERITY),
    ]


def all_boards(runbook):
    """Every board by the name of its file."""
    source = variable("source", "label_values(agent_session_state, source)", "Source")
    project = variable("project", 'label_values(agent_session_state{source=~"$source"}, project)', "Project")
    one = variable("session", 'label_values(agent_session_state{source=~"$source",project=~"$project"}, session)', "Session")
    # Of aggregates, which stand in every mode of series.
    any_source = variable("source", "label_values(agent_sessions, source)", "Source")
    any_project = variable("project", 'label_values(agent_sessions{source=~"$source"}, project)', "Project")
    run = [
        variable("source", "label_values(agent_orchestration_state, source)", "Source"),
        variable("project", 'label_values(agent_orchestration_state{source=~"$source"}, project)', "Project"),
        variable("orchestration", f"label_values(agent_orchestration_state{{{PROJECT}}}, orchestration)", "Orchestration"),
    ]
    instance = variable("instance", "label_values(agent_session_exporter_build_info, instance)", "Exporter")
    return {
        "needs-you": board(UIDS["needs"], "Agents: needs you now", "Which sessions wait for a person or are stuck, and since when.",
                           [source, project, one], needs_you(runbook)),
        "session": board(UIDS["session"], "Agents: session", "One session: its states, clocks, signals, steps and cost.",
                         [source, project, one], session()),
        "fleet": board(UIDS["fleet"], "Agents: fleet and models", "All sessions, by source, model and tool.",
                       [any_source, any_project], fleet()),
        "orchestration": board(UIDS["orchestration"], "Agents: orchestration", "Runs of orchestrators, their specs and limits.",
                               run, orchestration()),
        "exporter": board(UIDS["exporter"], "Agents: exporter", "Whether the exporter itself is well.", [instance], exporter()),
    }
