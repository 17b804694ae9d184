//! A recording in the lines that `replay` takes, made while a test plays a server of its own; and the proof that it
//! tells the same when it is played. The recordings stay in the target folder, where the backtest of the alerts reads
//! them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_session_exporter::event::{Event, Fact, Reducer, Timestamp};
use agent_session_exporter::sources::SourceDef;
use agent_session_exporter::sources::recorded::{Played, Setting, play};
use agent_session_exporter::telemetry::Telemetry;

/// What a server said and answered so far.
#[derive(Clone, Debug, Default)]
pub struct Tape(Vec<String>);

impl Tape {
    fn line(&mut self, at: Timestamp, what: &str) {
        self.0.push(format!("{{\"t\": {}, {what}}}\n", at.as_millis()));
    }

    pub fn connected(&mut self, at: Timestamp, connected: bool) {
        self.line(at, &format!("\"connected\": {connected}"));
    }

    /// A record, which is JSON, else taken as text.
    pub fn record(&mut self, at: Timestamp, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let is_json = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
        let record = if is_json { text.into_owned() } else { serde_json::Value::from(&*text).to_string() };
        self.line(at, &format!("\"record\": {record}"));
    }

    pub fn answer(&mut self, at: Timestamp, path: &str, status: u16, body: &[u8]) {
        let path = serde_json::Value::from(path);
        let body = if body.is_empty() { "null".into() } else { String::from_utf8_lossy(body) };
        self.line(at, &format!("\"answer\": {{\"path\": {path}, \"status\": {status}, \"body\": {body}}}"));
    }

    /// Writes it to where the backtest finds it.
    fn write(&self, source: &str, name: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("recordings").join(source);
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{name}.ndjson"));
        std::fs::write(&path, self.0.concat()).unwrap();
        path
    }

    /// Holds what `replay` finds in it against what was told while it was made. Both give a peer the time once a
    /// second, though not at the same moments of one: that is how far times may lie apart.
    pub fn tells_the_same<'e>(
        &self,
        def: &SourceDef,
        name: &str,
        reducer: Arc<Reducer>,
        events: impl Iterator<Item = &'e Event>,
    ) {
        let path = self.write(def.name, name);
        let setting = Setting { reducer, telemetry: Arc::new(Telemetry::new()), allow_builtin: false };
        let mut played = Played::default();
        play(def, &[path], &setting, &mut played).unwrap();
        assert_eq!(played.refused, BTreeMap::new(), "{name}");
        let told = by_words(events);
        let again = by_words(played.events.iter().map(|(_, event)| event));
        for words in told.keys().chain(again.keys()) {
            let (told, again) = (told.get(words), again.get(words));
            let near = |(a, b): (&Timestamp, &Timestamp)| a.since(*b).abs() <= 1_000;
            let same = told.zip(again).is_some_and(|(t, a)| t.len() == a.len() && t.iter().zip(a).all(near));
            assert!(same, "{name}: {words}\ntold  {told:?}\nagain {again:?}");
        }
        assert!(!told.is_empty() || name.contains("no-subscription"), "{name} tells nothing");
    }
}

/// Times of events by what they tell, but for links to the server, whose address a recording does not hold.
fn by_words<'e>(events: impl Iterator<Item = &'e Event>) -> BTreeMap<String, Vec<Timestamp>> {
    let mut all: BTreeMap<String, Vec<Timestamp>> = BTreeMap::new();
    for event in events {
        let mut event = event.clone();
        if let Fact::SessionQueued(info)
        | Fact::SessionStarted(info)
        | Fact::SessionResumed(info)
        | Fact::SessionUpdated(info) = &mut event.fact
        {
            (info.url, info.endpoint) = (None, None);
        }
        let Event { source, session, parent, project, request, fact, .. } = &event;
        let words = format!("{source:?} {session:?} {parent:?} {project:?} {request:?} {fact:?}");
        all.entry(words).or_default().push(event.time.unwrap_or(event.observed));
    }
    all.values_mut().for_each(|times| times.sort());
    all
}
