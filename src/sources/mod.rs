//! The list of sources, and what each of them hands over. A source is one file here plus its line in [`LIST`].

mod arguments;
pub mod claude_code;
pub mod codex;
pub mod files;
pub mod gobby;
pub mod live;
pub mod opencode;
pub mod openfox;
mod orchestrator;
pub mod push;
pub mod recorded;
mod shape;
pub mod spec;
mod walk;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::clock::Clock;
use crate::event::{Batch, Capabilities, Event, Reducer, SessionId, Timestamp};
use crate::telemetry::Telemetry;

/// A source describes itself; config, `check`, docs and the app walk [`LIST`].
pub struct SourceDef {
    /// Name: label value, config table, file name of its fixtures.
    pub name: &'static str,
    /// One line for the documentation.
    pub about: &'static str,
    /// `stable` or `experimental`.
    pub maturity: &'static str,
    /// Whether it runs without being configured.
    pub default_on: bool,
    /// What it can see, unless a session says otherwise.
    pub capabilities: Capabilities,
    /// What it can see of sessions that say so, beyond that.
    pub of_some: Capabilities,
    /// Where it looks below a home folder, for `check` and the documentation.
    pub looks_at: &'static str,
    /// Whether it can tell of requests to stop.
    pub sees_stops: bool,
    /// Sources that see sessions themselves which this one tells of by the same id.
    pub retells: &'static [&'static str],
    /// The servers it talks to, where it does.
    pub live: Option<&'static live::LiveSource>,
    /// What recordings of it are.
    pub recorded: recorded::Form,
    /// Starts it; the task ends when `stop` turns true. `None` for a source that is handed its events by the server.
    pub start: Option<fn(Context) -> tokio::task::JoinHandle<()>>,
}

/// Every source there is.
pub const LIST: &[&SourceDef] =
    &[&claude_code::DEF, &codex::DEF, &opencode::DEF, &openfox::DEF, &gobby::DEF, &spec::DEF, &push::DEF];

/// What a running source is given.
#[derive(Clone)]
pub struct Context {
    /// Home folders to search.
    pub homes: Vec<PathBuf>,
    /// Extra roots from the configuration.
    pub roots: Vec<PathBuf>,
    /// Servers from the configuration.
    pub live: live::Configured,
    /// Tells this machine from others.
    pub machine: String,
    /// Files whose modification time lies further back are not read.
    pub max_age: Duration,
    /// Hashes and classes for what may not leave.
    pub reducer: Arc<Reducer>,
    /// Where events go; waiting for room is what slows a source down.
    pub out: mpsc::Sender<Batch>,
    /// Reading positions of earlier runs, by cursor key.
    pub cursors: HashMap<u64, Vec<u8>>,
    /// Counters about the exporter itself.
    pub telemetry: Arc<Telemetry>,
    /// Wall time, for `observed`; decoders do not see it.
    pub clock: Clock,
    /// Turns true at shutdown.
    pub stop: watch::Receiver<bool>,
}

/// One record as it was read, without its line end.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// When it was read.
    pub observed: Timestamp,
}

/// Why a record gave no event. Closed, because it is a label of `decode_errors_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not one JSON value: not JSON, or more than one, or not UTF-8. Decoders of files answer so before they take
    /// anything of the record, because the runner then looks for the objects in it and hands them out again.
    #[error("malformed json")]
    Json,
    /// JSON, but not an object of the expected form.
    #[error("unexpected shape")]
    Shape,
    /// A time that cannot be one.
    #[error("impossible time")]
    Time,
}

/// Turns records of one stream into events. No clock, no network, no guessing from prose.
pub trait Decode: Send {
    /// Decodes one record.
    ///
    /// # Errors
    /// The record is skipped and counted by the reason; the stream goes on.
    fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Event>) -> Result<(), DecodeError>;

    /// What has to survive a restart, at most 64 KiB.
    fn checkpoint(&self) -> Vec<u8>;

    /// The session the stream is about, once it said so.
    fn session(&self) -> Option<&SessionId>;

    /// The session whose file tells of this one too.
    fn parent(&self) -> Option<&SessionId> {
        None
    }

    /// Makes `known` the sessions the stream is about; what stands there already may stay.
    fn sessions(&self, known: &mut Vec<SessionId>) {
        if let Some(session) = self.session().filter(|session| !known.contains(session)) {
            known.push(session.clone());
        }
    }

    /// Kinds of records met since the last call that this version does not know, for `unknown_records_total`.
    fn unknown_kinds(&mut self) -> Vec<String> {
        Vec::new()
    }
}

// === impl DecodeError ===

impl DecodeError {
    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Shape => "shape",
            Self::Time => "time",
        }
    }
}
