//! One followed file with its decoder, and what all of a source share.

use std::sync::Arc;

use super::objects::{Piece, pieces};
use super::owners::Owners;
use super::saved::Saved;
use super::{FileSource, Opening, PEEK};
use crate::clock::Clock;
use crate::event::{Counting, Event, Fact, Reducer, SessionId, SourceId, Timestamp};
use crate::ingest::{Handle, Tail};
use crate::sources::{Decode, DecodeError, Record};
use crate::telemetry::Telemetry;

/// A followed file and its decoder.
pub(super) struct Stream {
    pub(super) key: u64,
    /// The decoder, while the file is active.
    pub(super) decoder: Option<Box<dyn Decode>>,
    /// Everything else, and the decoder's checkpoint while there is none.
    pub(super) saved: Saved,
    pub(super) session: Option<SessionId>,
    /// All sessions it told of, as far as they are remembered.
    pub(super) sessions: Vec<SessionId>,
    /// The session whose file tells of this one too.
    pub(super) parent: Option<SessionId>,
    /// The id in the file's name; its lock file is called by it.
    pub(super) name: Option<String>,
    pub(super) warned: bool,
    /// Index of the agent's folder it lies in.
    pub(super) home: usize,
}

/// What all streams of the source share.
pub(super) struct Shared {
    pub(super) def: FileSource,
    pub(super) source: SourceId,
    pub(super) reducer: Arc<Reducer>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) clock: Clock,
    /// Whose records are whose, by home.
    pub(super) owners: Vec<Arc<Owners>>,
}

// === impl Shared ===

impl Shared {
    /// Names a stream, never shows it.
    pub(super) fn key(&self, name: &str) -> u64 {
        self.reducer.hash_all(&[self.source.as_str().as_bytes(), name.as_bytes()])
    }

    pub(super) fn restore(
        &self,
        home: usize,
        name: Option<&str>,
        checkpoint: &[u8],
    ) -> Option<Box<dyn Decode>> {
        (self.def.restore)(&self.opening(home, name, &[]), checkpoint)
    }

    fn opening<'a>(&self, home: usize, name: Option<&'a str>, head: &'a [u8]) -> Opening<'a> {
        Opening {
            source: self.source.clone(),
            reducer: self.reducer.clone(),
            name,
            owners: self.owners.get(home).cloned().unwrap_or_default(),
            head,
        }
    }

    pub(super) fn count_error(&self, reason: &str, n: u64) {
        if n > 0 {
            self.telemetry.decode_errors.with_label_values(&[self.source.as_str(), reason]).inc_by(n);
        }
    }

    pub(super) fn count_records(&self, n: u64, observed: Timestamp) {
        if n > 0 {
            let label = [self.source.as_str()];
            self.telemetry.records.with_label_values(&label).inc_by(n);
            self.telemetry.source_last_record.with_label_values(&label).set(observed.as_seconds());
        }
    }

    /// A fact of our own about a session, at the moment it was seen.
    pub(super) fn event(&self, session: &SessionId, what: &str, fact: Fact) -> Event {
        let observed = self.clock.now();
        let id = format!("{what}:{}", observed.as_millis());
        let mut event = Event::new(&self.source, session, observed, fact);
        event.id = Some(self.reducer.event_id(&self.source, session.as_str(), &id));
        event.time = Some(observed);
        event
    }
}

// === impl Stream ===

impl Stream {
    /// Starts at the head of the stream.
    pub(super) fn begin(&mut self, shared: &Shared, tail: &Tail, handle: Handle) {
        let head = if shared.def.peeks { tail.head(handle, PEEK) } else { Vec::new() };
        self.decoder = Some((shared.def.new)(&shared.opening(self.home, self.name.as_deref(), &head)));
        self.saved.lines = 0;
        // The session stays until another one is read: its file may be deleted before.
        self.warned = false;
    }

    /// Takes a line that ends at `end`: its record is counted, decoded, and complained about once. Returns how many
    /// records it held: a line that cannot be read as one may be several.
    pub(super) fn take(
        &mut self,
        shared: &Shared,
        record: &Record<'_>,
        end: u64,
        out: &mut Vec<Event>,
    ) -> u64 {
        let before = out.len();
        let records = self.decode(shared, record, out);
        if self.saved.generation > 0 {
            for event in &mut out[before..] {
                let generation = self.saved.generation;
                event.id = event.id.map(|id| shared.reducer.hash_all(&[&id.to_le_bytes(), &[generation]]));
                if end <= self.saved.counted_until {
                    event.counting = Counting::Never;
                }
            }
        }
        records
    }

    /// From the head again, as another generation: part of what was read is another session's.
    pub(super) fn begin_anew(&mut self, shared: &Shared, tail: &Tail, handle: Handle, read_until: u64) {
        // After 255 times ids would come again; nothing steals that often.
        self.saved.generation = self.saved.generation.saturating_add(1);
        self.saved.counted_until = self.saved.counted_until.max(read_until);
        self.begin(shared, tail, handle);
    }

    fn decode(&mut self, shared: &Shared, record: &Record<'_>, out: &mut Vec<Event>) -> u64 {
        let Some(decoder) = &mut self.decoder else { return 0 };
        self.saved.lines += 1;
        let before = out.len();
        match decoder.decode(record, out) {
            Ok(()) => 1,
            Err(DecodeError::Json) if out.len() == before => self.take_pieces(shared, record, out),
            Err(error) => {
                self.complain(shared, error);
                1
            }
        }
    }

    /// Takes the objects of a line that is not one.
    fn take_pieces(&mut self, shared: &Shared, line: &Record<'_>, out: &mut Vec<Event>) -> u64 {
        let mut records = 0;
        pieces(line.bytes, &mut |piece| {
            records += 1;
            let decoded = match (piece, &mut self.decoder) {
                // The line as it was would only fail again.
                (Piece::Object(bytes), Some(decoder)) if *bytes != *line.bytes => {
                    decoder.decode(&Record { bytes: &bytes, observed: line.observed }, out)
                }
                _ => Err(DecodeError::Json),
            };
            if let Err(error) = decoded {
                self.complain(shared, error);
            }
        });
        records
    }

    fn complain(&mut self, shared: &Shared, error: DecodeError) {
        shared.count_error(error.as_str(), 1);
        let (source, reason, line) = (shared.source.as_str(), error.as_str(), self.saved.lines);
        if std::mem::replace(&mut self.warned, true) {
            tracing::debug!(source, reason, line, "record skipped");
        } else {
            tracing::warn!(source, reason, line, "record skipped; further ones of this file at debug level");
        }
    }

    /// The cursor as of now.
    pub(super) fn cursor(&mut self, tail: &Tail, handle: Handle, root_keys: &[u64]) -> Vec<u8> {
        if let Some(decoder) = &self.decoder {
            self.saved.decoder = decoder.checkpoint();
        }
        if let Some(file) = tail.get(handle) {
            self.saved.position = file.position;
            self.saved.root = root_keys[file.root];
        }
        let bytes = self.saved.to_bytes();
        if self.decoder.is_some() {
            self.saved.decoder = Vec::new();
        }
        bytes
    }

    /// Keeps of an idle file's decoder only the checkpoint.
    pub(super) fn rest(&mut self) {
        if let Some(decoder) = self.decoder.take() {
            self.saved.decoder = decoder.checkpoint();
        }
    }
}
