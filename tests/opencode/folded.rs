//! Events folded as the store folds them, each once, and what is told of a session then.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use agent_session_exporter::event::{Event, Fact, SessionId, SourceId, Timestamp};
use agent_session_exporter::session::snapshot::Tree;
use agent_session_exporter::session::{Derived, Facts, Session, Snapshot};
use agent_session_exporter::sources::opencode::DEF;

/// Sessions being folded.
#[derive(Default)]
pub(crate) struct Folded {
    sessions: BTreeMap<SessionId, Session>,
    seen: HashSet<(SessionId, u64)>,
    pub(crate) doubles: usize,
}

pub(crate) fn words(derived: &Derived) -> String {
    format!("{}/{}", derived.state.as_str(), derived.reason.as_str())
}

/// The end of an id.
pub(crate) fn short(id: &str) -> &str {
    &id[id.len().saturating_sub(5)..]
}

// === impl Folded ===

impl Folded {
    pub(crate) fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut folded = Self::default();
        for event in events {
            folded.take(event);
        }
        folded
    }

    pub(crate) fn take(&mut self, event: &Event) {
        if !self.seen.insert((event.session.clone(), event.id.unwrap())) {
            self.doubles += 1;
            return;
        }
        let new = || Session::new(Facts::new(event.source.clone(), event.session.clone(), event.observed));
        let session = self.sessions.entry(event.session.clone()).or_insert_with(new);
        session.apply(event.clone(), Timestamp::default());
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let sessions: Vec<_> = self.sessions.values().map(|s| Some(s.facts().clone())).collect();
        Snapshot {
            tree: Arc::new(Tree::of(&sessions)),
            sessions,
            capabilities: Arc::new([(SourceId::from("opencode"), DEF.capabilities)].into()),
            scanned: true,
            ..Snapshot::default()
        }
    }

    pub(crate) fn states(&self, now: Timestamp) -> BTreeMap<String, Derived> {
        let snapshot = self.snapshot();
        let state = |slot| {
            let derived = snapshot.derive(&snapshot.rollup(slot, now).unwrap());
            (snapshot.facts(slot).unwrap().session.as_str().to_owned(), derived)
        };
        snapshot.roots().map(state).collect()
    }

    pub(crate) fn facts(&self, session: &str) -> Arc<Facts> {
        self.sessions[&SessionId::from(session)].facts().clone()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Facts>> {
        self.sessions.values().map(|s| s.facts().clone()).collect()
    }

    /// One line of numbers for a session.
    pub(crate) fn numbers(f: &Facts) -> String {
        let mut out = format!(
            "turns {} {} {} {} | calls {} {} | tokens {} {} {} {} | cost {}",
            f.turns.started,
            f.turns.completed,
            f.turns.failed,
            f.turns.cancelled,
            f.calls.total,
            f.calls.failed,
            f.usage.input,
            f.usage.cache_read,
            f.usage.cache_write,
            f.usage.output,
            f.usage.cost_nano,
        );
        for p in &f.progress {
            write!(out, " | {} {}+{}", p.kind.as_str(), p.high, p.low).unwrap();
        }
        if let Some(stuck) = &f.native_stuck {
            write!(out, " | stuck {}/{}", stuck.detector.as_str(), stuck.layer.as_str()).unwrap();
        }
        if let Some(plan) = &f.plan {
            write!(out, " | plan {} {} {} {}", plan.pending, plan.in_progress, plan.done, plan.failed)
                .unwrap();
        }
        out
    }
}

/// What happened to whom, and when: states of roots as they change, requests, retries.
pub(crate) fn story(events: &[(Timestamp, Event)], until: Timestamp) -> String {
    let Some((first, _)) = events.first() else { return String::new() };
    let zero = events.iter().filter_map(|(_, e)| e.time).min().unwrap().min(*first);
    let seconds = |t: Timestamp| format!("{:.1}", t.since(zero) as f64 / 1000.0);
    let mut folded = Folded::default();
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    let mut out = String::new();
    let look = |folded: &Folded, now: Timestamp, last: &mut BTreeMap<String, String>, out: &mut String| {
        for (session, derived) in folded.states(now) {
            let word = words(&derived);
            if last.get(&session) != Some(&word) {
                writeln!(
                    out,
                    "  {} {} {word} since {}",
                    seconds(now),
                    short(&session),
                    seconds(derived.since)
                )
                .unwrap();
                last.insert(session, word);
            }
        }
    };
    let mut at = 0;
    while at < events.len() {
        let now = events[at].0;
        while at < events.len() && events[at].0 == now {
            let event = &events[at].1;
            folded.take(event);
            let who = short(event.session.as_str());
            let when = event.time.map(seconds).unwrap_or_default();
            match &event.fact {
                Fact::ActionRequired { kind, tool, call, .. } => {
                    let tool = tool.as_ref().map_or("-", |t| t.as_str());
                    writeln!(
                        out,
                        "  {who} asks {} {tool} since {when}, call {}",
                        kind.as_str(),
                        call.is_some()
                    )
                    .unwrap();
                }
                Fact::ActionResolved { resolution, .. } => {
                    writeln!(out, "  {who} answered {} at {when}", resolution.as_str()).unwrap();
                }
                Fact::Blocked { reason, attempt, until, .. } => {
                    let until = until.map(seconds).unwrap_or_default();
                    writeln!(out, "  {who} {} {attempt:?} at {when} until {until}", reason.as_str()).unwrap();
                }
                Fact::Error { class, .. } => {
                    writeln!(out, "  {who} error {} at {when}", class.as_str()).unwrap()
                }
                Fact::SessionDeleted => writeln!(out, "  {who} deleted at {when}").unwrap(),
                _ => {}
            }
            at += 1;
        }
        look(&folded, now, &mut last, &mut out);
    }
    look(&folded, until, &mut last, &mut out);
    for facts in folded.all() {
        let parent = facts.parent.as_ref().map_or(String::new(), |p| format!(" of {}", short(p.as_str())));
        writeln!(out, "  {}{parent}: {}", short(facts.session.as_str()), Folded::numbers(&facts)).unwrap();
    }
    out
}
