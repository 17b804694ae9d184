//! A recorded scenario played again: the records of its files in the order in which they were written, with the
//! word of its registry beside them.

use std::sync::Arc;

use agent_session_exporter::event::{
    ActionKind, Capabilities, Capability, Certainty, Event, Fact, Id, Resolution, SessionId, SessionInfo,
    Timestamp, Writer,
};
use agent_session_exporter::sources::claude_code::Claude;
use agent_session_exporter::sources::files::Owners;
use agent_session_exporter::sources::{Decode, Record};
use serde_json::Value;

use super::folded::{File, Folded, file, files, lines, opening, source, text};

/// Events by the moment at which they could be known.
pub(crate) struct Play {
    events: Vec<(Timestamp, Event)>,
}

enum Step<'a> {
    Line(usize, &'a [u8]),
    Registry(Box<Event>),
}

/// Names of the recorded scenarios.
pub(crate) fn scenarios() -> Vec<String> {
    let all = files("claude_code", ".transcript.jsonl");
    let own = all.iter().filter(|name| !name.contains(".subagent-"));
    let names =
        own.map(|name| name["claude_code/".len()..].strip_suffix(".transcript.jsonl").unwrap().to_owned());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// The files of a scenario, the main one first.
pub(crate) fn of_scenario(scenario: &str) -> Vec<File> {
    let names = files("claude_code", ".jsonl");
    let own = names.iter().filter(|name| name.starts_with(&format!("claude_code/{scenario}.")));
    let mut own: Vec<_> = own.collect();
    own.sort_by_key(|name| (name.contains(".subagent-"), !name.ends_with(".transcript.jsonl"), *name));
    own.into_iter().map(|name| file(name)).collect()
}

/// A moment of the day of the recordings.
pub(crate) fn clock(time: &str) -> Timestamp {
    Timestamp::parse(&format!("2026-11-29T{time}Z")).unwrap()
}

fn time_of(line: &[u8]) -> (Option<Timestamp>, bool) {
    let value: Value = serde_json::from_slice(line).unwrap();
    let time = value["timestamp"].as_str().map(|time| Timestamp::parse(time).unwrap());
    (time, value["type"] == "cost-state")
}

/// What the registry said, as events, and when processes left in order.
fn registry(scenario: &str) -> (Vec<(Timestamp, Event)>, Vec<Timestamp>) {
    let mut out = Vec::new();
    let mut left = Vec::new();
    let mut open: Option<(SessionId, Id)> = None;
    let mut last: Option<(SessionId, Timestamp)> = None;
    for line in text(&format!("claude_code/{scenario}.sessions.ndjson")).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let seen = Timestamp::from_millis(line["t"].as_i64().unwrap());
        let content = &line["content"];
        let at = content["statusUpdatedAt"].as_i64().map_or(seen, Timestamp::from_millis);
        let session = match content["sessionId"].as_str() {
            Some(id) => SessionId::from(id),
            None => last.as_ref().unwrap().0.clone(),
        };
        let mut say = |session: &SessionId, at: Timestamp, fact: Fact| {
            let mut event = Event::new(&source(), session, at, fact);
            event.time = Some(at);
            out.push((at, event));
        };
        if let Some((session, action)) = open.take() {
            say(&session, at, Fact::ActionResolved { action, resolution: Resolution::Unknown });
        }
        if content.is_null() {
            say(&session, seen, Fact::Writer(Writer::Left));
            left.push(seen);
            last = Some((session, seen));
            continue;
        }
        if content["status"].is_null() {
            // It starts, under an id that may never be used.
            continue;
        }
        say(&session, seen, Fact::Writer(Writer::Alive));
        let all = Capabilities::of(Capability::ALL).without(Capability::Steps);
        let info = SessionInfo { capabilities: Some(all), ..SessionInfo::default() };
        say(&session, seen, Fact::SessionUpdated(info));
        if content["status"] == "waiting" {
            let kind = match content["waitingFor"].as_str().unwrap() {
                "permission prompt" => ActionKind::Permission,
                "input needed" => ActionKind::Question,
                _ => ActionKind::Other,
            };
            let action = Id::from(format!("registry:{}", at.as_millis()).as_str());
            let certainty = Certainty::Certain;
            let required =
                Fact::ActionRequired { action: action.clone(), kind, certainty, tool: None, call: None };
            say(&session, at, required);
            open = Some((session.clone(), action));
        }
        last = Some((session, seen));
    }
    if left.last() != last.as_ref().map(|(_, at)| at) {
        // Its file was left behind: a minute after the last record the process is found dead.
        let end =
            of_scenario(scenario).iter().flat_map(|f| lines(&f.bytes)).filter_map(|l| time_of(l).0).max();
        let (session, _) = last.unwrap();
        let gone = end.unwrap().plus(60_000);
        let mut event = Event::new(&source(), &session, gone, Fact::Writer(Writer::Gone));
        event.time = Some(gone);
        out.push((gone, event));
    }
    (out, left)
}

// === impl Play ===

impl Play {
    pub(crate) fn new(scenario: &str, with_registry: bool) -> Self {
        let files = of_scenario(scenario);
        let (said, left) = registry(scenario);
        let mut steps = Vec::new();
        for (i, file) in files.iter().enumerate() {
            let mut at = Timestamp::from_millis(0);
            for line in lines(&file.bytes) {
                let (time, totals) = time_of(line);
                at = at.max(time.unwrap_or(at));
                if totals {
                    // Written without a time, when the process leaves.
                    at = left.iter().copied().find(|left| *left >= at).unwrap_or(at);
                }
                steps.push((at, Step::Line(i, line)));
            }
        }
        if with_registry {
            steps.extend(said.into_iter().map(|(at, event)| (at, Step::Registry(Box::new(event)))));
        }
        steps.sort_by_key(|(at, _)| *at);

        let owners = Arc::new(Owners::default());
        let mut decoders: Vec<_> = files.iter().map(|file| Claude::new(&opening(file, &owners))).collect();
        let mut events = Vec::new();
        for (at, step) in steps {
            match step {
                Step::Registry(event) => events.push((at, *event)),
                Step::Line(i, line) => {
                    let mut out = Vec::new();
                    decoders[i].decode(&Record { bytes: line, observed: at }, &mut out).unwrap();
                    events.extend(out.into_iter().map(|event| (at, event)));
                }
            }
        }
        Self { events }
    }

    /// What was known at a moment.
    pub(crate) fn until(&self, now: Timestamp) -> Folded {
        let known = self.events.iter().filter(|(at, _)| *at <= now);
        Folded::of(known.map(|(_, event)| event.clone()))
    }

    /// What is known in the end.
    pub(crate) fn whole(&self) -> Folded {
        Folded::of(self.events.iter().map(|(_, event)| event.clone()))
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().map(|(_, event)| event)
    }
}
