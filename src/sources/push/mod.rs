//! The push source: anybody's agent, told in the generic schema over HTTP (`http`) or standard input (`stdin`).
//! It returns a router of its own, which the app merges with the views'. What the schema's words mean is in
//! `facts`, what may not leave is reduced in `calls`; storing and counting events is the owner task's.

mod calls;
mod cloudevents;
mod decode;
mod engine;
mod facts;
mod http;
mod names;
mod recorded;
mod refuse;
mod scan;
mod stdin;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::SourceDef;
use super::recorded::Form;
use crate::clock::Clock;
use crate::event::Batch;
use crate::event::Capabilities;
use crate::event::Capability;
use crate::event::Event;
use crate::event::Reducer;
use crate::event::Timestamp;
use crate::telemetry::Telemetry;

pub use self::decode::Decoder;
pub use self::http::router;
pub use self::names::{Admission, BUILT_IN, MAX_SOURCES};
pub use self::refuse::Reason;
pub use self::stdin::read_stdin;

/// The push source in the list. It reads nothing by itself: its work is done by [`router`] and [`read_stdin`].
pub const DEF: SourceDef = SourceDef {
    name: "push",
    about: "Any agent, told in the generic event schema over HTTP (POST /api/v1/events) or standard input",
    maturity: "experimental",
    default_on: true,
    capabilities: Capabilities::of(Capability::ALL).without(Capability::Liveness),
    of_some: Capabilities(0),
    looks_at: "",
    live: None,
    sees_stops: true,
    retells: &[],
    recorded: Form::Own(recorded::lines),
    start: None,
};

/// Bounds and leave.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bearer token that requests must carry; none is asked for where this is `None`.
    pub token: Option<String>,
    /// Whether names of built-in sources may be pushed.
    pub allow_builtin: bool,
    /// Largest body, inflated, in bytes.
    pub max_body: usize,
    /// Longest line or item, in bytes.
    pub max_line: usize,
    /// Most items of one request.
    pub max_items: usize,
    /// Bytes of bodies that are held at one time, over all requests.
    pub max_held: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
}

/// What the push source works with.
#[derive(Clone)]
pub struct Push {
    /// Where batches go.
    pub out: mpsc::Sender<Batch>,
    /// Hashes and classes for what may not leave.
    pub reducer: Arc<Reducer>,
    /// Counters about the exporter itself.
    pub telemetry: Arc<Telemetry>,
    /// Wall time, for `observed`.
    pub clock: Clock,
    /// Bounds and leave.
    pub options: Options,
    /// The sources that pushed so far; clones share it.
    pub admission: Arc<Admission>,
}

/// What was read of one batch, for the counters.
#[derive(Default)]
struct Intake {
    events: Vec<Event>,
    refused: Vec<(usize, Reason)>,
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            token: None,
            allow_builtin: false,
            max_body: 8 << 20,
            max_line: 1 << 20,
            max_items: 50_000,
            max_held: 64 << 20,
            body_timeout: Duration::from_secs(10),
        }
    }
}

// === impl Push ===

impl Push {
    /// A push source that has seen nothing yet.
    pub fn new(
        out: mpsc::Sender<Batch>,
        reducer: Arc<Reducer>,
        telemetry: Arc<Telemetry>,
        clock: Clock,
        options: Options,
    ) -> Self {
        Self { out, reducer, telemetry, clock, options, admission: Arc::default() }
    }

    /// A decoder for one request or stream.
    pub fn decoder(&self) -> Decoder {
        Decoder::new(self.reducer.clone(), self.telemetry.clone(), self.admission.clone(), &self.options)
    }

    fn refused(&self, reason: Reason) {
        self.telemetry.push_refused.with_label_values(&[reason.as_str()]).inc();
    }

    /// Counts what was read, once per batch: a look-up per event would cost as much as decoding it.
    fn count(&self, intake: &Intake, now: Timestamp) {
        let mut sources: Vec<(&str, u64)> = Vec::new();
        for event in &intake.events {
            let name = event.source.as_str();
            match sources.iter_mut().find(|(known, _)| *known == name) {
                Some((_, n)) => *n += 1,
                None => sources.push((name, 1)),
            }
        }
        for (name, n) in sources {
            self.telemetry.records.with_label_values(&[name]).inc_by(n);
            self.telemetry.source_last_record.with_label_values(&[name]).set(now.as_seconds());
        }
        for (_, reason) in &intake.refused {
            self.refused(*reason);
        }
    }
}

// === impl Intake ===

impl Intake {
    fn take(&mut self, index: usize, decoded: Result<Event, Reason>) {
        match decoded {
            Ok(event) => self.events.push(event),
            Err(reason) => self.refused.push((index, reason)),
        }
    }
}
