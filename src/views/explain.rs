//! Why a session is in its state: the rule that decided, the facts it used, and the source's own word beside ours.

use std::collections::BTreeMap;

use serde::Serialize;

use super::status::Moment;
use crate::event::SCHEMA_VERSION;
use crate::session::explain::{RULES, facts_used};
use crate::session::{Rollup, Snapshot};

/// The answer of the `explain` route.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation<'a> {
    schema_version: &'static str,
    source: &'a str,
    session_id: &'a str,
    now: Moment,
    state: &'static str,
    state_reason: &'static str,
    state_since: Moment,
    rule: Rule,
    facts: BTreeMap<&'static str, Option<String>>,
    source_word: SourceWord,
}

/// The rule that decided.
#[derive(Clone, Copy, Debug, Serialize)]
struct Rule {
    number: u8,
    text: &'static str,
}

/// What the source itself said about ends; `null` where it said nothing.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SourceWord {
    turn: Option<TurnWord>,
    run: Option<RunWord>,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TurnWord {
    ended_at: Option<Moment>,
    outcome: &'static str,
    error_class: Option<&'static str>,
    /// False where the record cannot tell success from failure.
    result_known: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RunWord {
    ended_at: Option<Moment>,
    outcome: &'static str,
    error_class: Option<&'static str>,
    workflow: bool,
}

// === impl Explanation ===

impl<'a> Explanation<'a> {
    /// Explains the state of a session at this moment.
    pub fn of(snapshot: &Snapshot, view: &Rollup<'a>) -> Self {
        let root = view.root;
        let derived = snapshot.derive(view);
        let turn = root.turn_end.as_ref().map(|end| TurnWord {
            ended_at: end.time.map(Moment),
            outcome: end.outcome.as_str(),
            error_class: end.error.map(|e| e.as_str()),
            result_known: end.result_known,
        });
        let run = root.run_end.as_ref().map(|end| RunWord {
            ended_at: end.time.map(Moment),
            outcome: end.outcome.as_str(),
            error_class: end.error.map(|e| e.as_str()),
            workflow: end.workflow,
        });
        // The rule stands in a field of its own.
        let facts = facts_used(view, &derived).into_iter().filter(|(name, _)| *name != "rule").collect();
        Self {
            schema_version: SCHEMA_VERSION,
            source: root.source.as_str(),
            session_id: root.session.as_str(),
            now: Moment(view.now),
            state: derived.state.as_str(),
            state_reason: derived.reason.as_str(),
            state_since: Moment(derived.since),
            rule: Rule { number: derived.rule, text: RULES[usize::from(derived.rule.clamp(1, 9)) - 1] },
            facts,
            source_word: SourceWord { turn, run },
        }
    }
}
