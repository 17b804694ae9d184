//! The runner shared by sources that talk to running servers: one stream and some questions per server in, batches
//! with their cursors out. What a record or an answer means is the [`Peer`]'s business, what a connection is
//! `ingest`'s. Nothing here can change anything at a server: it sends questions and, where a server wants one, a
//! subscription.

mod place;
mod probe;
mod run;
mod servers;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

pub use self::place::{Login, Place, PlaceError};
pub use self::probe::probe;
pub use self::run::machine;
use super::{Context, DecodeError, Record};
use crate::event::{Event, Name, Reducer, SourceId, Timestamp};
pub use crate::ingest::client::{Answer, AskError, Trust};

/// What a [`Peer`] is made from.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Name of the source.
    pub source: SourceId,
    /// The server, in a form that may be shown: `127.0.0.1:4096`.
    pub endpoint: Name,
    /// Beginning of links to the server's own pages, without a slash at the end: `http://127.0.0.1:4096`.
    pub base: String,
    /// Hashes and classes for what may not leave.
    pub reducer: Arc<Reducer>,
}

/// Makes a peer, from what an earlier run kept where there is something.
pub type NewPeer = fn(&Opening, Option<&[u8]>) -> Box<dyn Peer>;

/// A source that is servers on this machine or another.
#[derive(Clone, Copy)]
pub struct LiveSource {
    /// Name of the source.
    pub name: &'static str,
    /// Servers that are looked for where none is configured.
    pub servers: &'static [&'static str],
    /// The stream of a server.
    pub stream: Stream,
    /// Silence of the stream after which it is taken for dead; for servers that send heartbeats.
    pub quiet: Option<Duration>,
    /// Patience with one question, and, up to ten seconds, with the opening of the stream.
    pub patience: Duration,
    /// Paths of which one answers if the server is what it is taken for, for `check`.
    pub health: &'static [&'static str],
    /// How a configured token is sent; a user name and password always go as HTTP Basic.
    pub token: Token,
    /// The user name where only a password is configured.
    pub username: &'static str,
    /// What the server's records and answers mean.
    pub new: NewPeer,
}

/// How a server tells what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Server-sent events at this path: a record is the data of one event.
    Events {
        /// The path.
        path: &'static str,
    },
    /// A WebSocket: a record is one text message.
    Socket {
        /// The path.
        path: &'static str,
        /// Added to the port of the server.
        port_offset: u16,
        /// The only message that is ever sent, once, where the server wants one.
        hello: Option<&'static str>,
    },
}

/// Where a configured token goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// `Authorization: Bearer`.
    Bearer,
    /// This header of questions, and this query parameter of the stream.
    Named {
        /// The header.
        header: &'static str,
        /// The parameter.
        query: &'static str,
    },
}

/// One question to the server: a GET, or a query of history that a server only takes as POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What is asked, in the peer's own numbering.
    pub tag: u32,
    /// What it is asked about: a session, a project, a directory.
    pub about: Option<Arc<str>>,
    /// Path with its query, percent-encoded.
    pub path: String,
    /// The body of a query of history.
    pub query: Option<String>,
}

/// What a peer has to say after it was told something.
#[derive(Debug, Default)]
pub struct Said {
    /// Events, in order.
    pub events: Vec<Event>,
    /// What it wants to know, in order. Each is answered once, unless the connection is lost before.
    pub asks: Vec<Ask>,
    /// Kinds of records it does not know, for `unknown_records_total`.
    pub unknown: Vec<String>,
    /// How often the server's own word about a session differed from ours.
    pub disagreements: u64,
    /// The server does not speak as it should: drop the connection and begin again later.
    pub give_up: bool,
}

/// One server as its source sees it. Without clock and network: it is told what came and what time it is, and says
/// what follows. The order is: `connected`, then records, answers and ticks as they come, then `lost`, and again.
pub trait Peer: Send {
    /// The stream stands. What was open before may have changed without a word.
    fn connected(&mut self, now: Timestamp, said: &mut Said);

    /// The stream is gone, or the server does not answer.
    fn lost(&mut self, now: Timestamp, said: &mut Said);

    /// One record of the stream.
    ///
    /// # Errors
    /// The record is skipped and counted by the reason; the stream goes on.
    fn record(&mut self, record: &Record<'_>, said: &mut Said) -> Result<(), DecodeError>;

    /// A question was answered, or could not be.
    ///
    /// # Errors
    /// The answer is skipped and counted by the reason.
    fn answered(
        &mut self,
        ask: &Ask,
        answer: &Result<Answer, AskError>,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError>;

    /// About once a second while connected: the time for questions that are asked now and then, and for conclusions
    /// from what did not come.
    fn tick(&mut self, now: Timestamp, said: &mut Said);

    /// Whether records of the stream are to wait until what was asked is answered. The source counts as up once this
    /// is over for the first time.
    fn catching_up(&self) -> bool {
        false
    }

    /// Whether it knows of a session at work: only then a server that was merely found is missed when it goes.
    fn has_open(&self) -> bool {
        false
    }

    /// What has to survive a restart of the exporter, if it changed since the last call; at most 64 KiB.
    fn changed(&mut self) -> Option<Vec<u8>> {
        None
    }
}

/// What the configuration says about a source's servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// Servers by address; none: look for the usual ones.
    pub servers: Vec<Place>,
    /// A JSON file that lists servers, read again when it changes.
    pub servers_file: Option<PathBuf>,
    /// How to log in at servers whose entry does not say.
    pub login: Login,
    /// Whom to trust for `https`.
    pub trust: Trust,
}

// === impl Ask ===

impl Ask {
    /// A GET of this path.
    pub fn get(tag: u32, path: impl Into<String>) -> Self {
        Self { tag, about: None, path: path.into(), query: None }
    }

    /// The same, about something.
    #[must_use]
    pub fn about(mut self, what: &str) -> Self {
        self.about = Some(Arc::from(what));
        self
    }

    /// A query of history, with this body. The client refuses any path but those it knows to be mere queries.
    pub fn history(tag: u32, path: impl Into<String>, body: String) -> Self {
        Self { tag, about: None, path: path.into(), query: Some(body) }
    }
}

/// What depends on the circumstances rather than on the source.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// Time between ticks of peers.
    pub tick: Duration,
    /// How long events are gathered before they are handed on: each batch costs the store a commit.
    pub gather: Duration,
    /// First pause before a server is tried again.
    pub pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
}

// === impl Surroundings ===

impl Default for Surroundings {
    fn default() -> Self {
        Self {
            tick: Duration::from_secs(1),
            gather: Duration::from_millis(200),
            pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
        }
    }
}

/// Starts a source; the task ends when `stop` of the context turns true or nobody takes its batches any more.
pub fn start(source: &'static LiveSource, context: Context) -> JoinHandle<()> {
    start_in(source, context, Surroundings::default())
}

/// As [`start`], in other circumstances.
pub fn start_in(source: &'static LiveSource, context: Context, surroundings: Surroundings) -> JoinHandle<()> {
    tokio::spawn(run::Run::new(source, context, surroundings).until_stopped())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Peer for Nobody {
        fn connected(&mut self, _: Timestamp, _: &mut Said) {}
        fn lost(&mut self, _: Timestamp, _: &mut Said) {}
        fn record(&mut self, _: &Record<'_>, _: &mut Said) -> Result<(), DecodeError> {
            Ok(())
        }
        fn answered(
            &mut self,
            _: &Ask,
            _: &Result<Answer, AskError>,
            _: Timestamp,
            _: &mut Said,
        ) -> Result<(), DecodeError> {
            Ok(())
        }
        fn tick(&mut self, _: Timestamp, _: &mut Said) {}
    }

    /// A source for tests of the parts that do not care which.
    pub(super) fn source() -> LiveSource {
        LiveSource {
            name: "test",
            servers: &["http://127.0.0.1:4096"],
            stream: Stream::Events { path: "/events" },
            quiet: None,
            patience: Duration::from_secs(1),
            health: &["/health"],
            token: Token::Bearer,
            username: "",
            new: |_, _| Box::new(Nobody),
        }
    }
}
