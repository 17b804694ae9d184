//! Families of the loop signals: what the calls since the last landing look like, without any threshold. They have
//! series where calls and progress can be seen; in an empty window shares are 0.

use super::Kind::Gauge;
use super::Stability::Experimental;
use super::{Family, Life, Rows, SessionSink, SessionView, Value};
use crate::session::Signals;

/// Signals that rules use.
pub(super) const CALLS_SINCE_PROGRESS: Family = signal(
    "agent_session_calls_since_progress",
    "Tool calls begun since the last factual advance or a person's prompt, sub-agents included; calls inside a script \
     stand for it.",
    |s, out| number(s, out, |x| x.calls_since_progress),
);
pub(super) const WINDOW_CALLS: Family = signal(
    "agent_session_window_calls",
    "How many of the last 60 tool calls began since the last factual advance or a person's prompt.",
    |s, out| number(s, out, |x| x.window_calls),
);
pub(super) const NO_NEW_RATIO: Family = signal(
    "agent_session_no_new_ratio",
    "Share of the calls of the window that bring nothing new: no key, no output, no lines that were not seen since the \
     last factual advance; 0 in an empty window.",
    |s, out| float(s, out, |x| Some(x.no_new_ratio())),
);
pub(super) const ERROR_STREAK: Family = signal(
    "agent_session_error_streak",
    "Trailing run of one error among the calls since the last factual advance or a person's prompt.",
    |s, out| number(s, out, |x| x.error_streak),
);
pub(super) const REPEATED_CALL_MAX: Family = signal(
    "agent_session_repeated_call_max",
    "Most calls with the same arguments that brought nothing new since the last factual advance or a person's prompt.",
    |s, out| number(s, out, |x| x.repeated_call_max),
);
pub(super) const READ_COVERAGE_RATIO: Family = signal(
    "agent_session_read_coverage_ratio",
    "Lines read of the file that was read most in the window, by its length; absent while no length is known.",
    |s, out| float(s, out, Signals::read_coverage_ratio),
);

/// Signals that no rule uses.
pub(super) const REPEAT_RATIO: Family = extra(
    "agent_session_repeat_ratio",
    "1 less the share of different calls in the window; 0 in an empty window. Only with --series=all.",
    |s, out| float(s, out, |x| Some(x.repeat_ratio())),
);
pub(super) const TOP_TARGET_CALLS: Family = extra(
    "agent_session_top_target_calls",
    "Most calls of the window on one target (file, search or command). Only with --series=all.",
    |s, out| number(s, out, |x| x.top_target_calls),
);
pub(super) const CALL_STREAK: Family = extra(
    "agent_session_call_streak",
    "Trailing run of one call in the window. Only with --series=all.",
    |s, out| number(s, out, |x| x.call_streak),
);
pub(super) const CYCLE_REPEATS: Family = extra(
    "agent_session_cycle_repeats",
    "Most repetitions of a cycle of one to five calls at the end of the window. Only with --series=all.",
    |s, out| number(s, out, |x| x.cycle_repeats),
);
pub(super) const LOW_VALUE_EVENTS: Family = extra(
    "agent_session_low_value_events",
    "Facts that are no advance (calls, reads, failures, repeats) since the last one that is. Only with --series=all.",
    |s, out| {
        if s.signals().is_some() {
            out.sample(&[], Value::Count(s.rollup.low_value_events()));
        }
    },
);

type Row = fn(&SessionView<'_>, &mut dyn SessionSink);

const fn signal(name: &'static str, help: &'static str, rows: Row) -> Family {
    let rows = Rows::Session(Life::Live, rows);
    Family { name, kind: Gauge, help, labels: &[], stability: Experimental, rows }
}

const fn extra(name: &'static str, help: &'static str, rows: Row) -> Family {
    let rows = Rows::Session(Life::LiveInAll, rows);
    Family { name, kind: Gauge, help, labels: &[], stability: Experimental, rows }
}

fn number(s: &SessionView<'_>, out: &mut dyn SessionSink, of: fn(&Signals) -> u32) {
    if let Some(signals) = s.signals() {
        out.sample(&[], Value::Count(of(signals).into()));
    }
}

fn float(s: &SessionView<'_>, out: &mut dyn SessionSink, of: fn(&Signals) -> Option<f64>) {
    if let Some(value) = s.signals().and_then(of) {
        out.sample(&[], Value::Float(value));
    }
}
