//! What was recorded of a source, played again into events, each with the moment at which it became known. Both clocks
//! come from the recording: nothing here asks what time it is, follows a file or opens a connection.
//!
//! What a recording looks like is said by its source's [`Form`]. The files that an agent writes are recordings as they
//! are. What has no times of its own, because it is read while it happens, is recorded in lines of
//! `{"t": time, "record": …}`, see `server` and `lines`.

mod files;
mod lines;
mod server;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::SourceDef;
use super::files::FileSource;
use super::live::LiveSource;
use crate::event::{Event, Reducer, SourceId, Timestamp};
use crate::ingest::whole::{WholeLine, each_line};
use crate::telemetry::Telemetry;

/// What recordings of a source are.
#[derive(Clone, Copy)]
pub enum Form {
    /// The files that the agent writes.
    Files(&'static FileSource),
    /// What a server said and answered, in lines with times.
    Server(&'static LiveSource),
    /// Lines in the source's own form, which have times.
    Own(NewLines),
    /// Records in lines with times.
    Stamped(NewLines),
}

/// Begins to play one file of lines.
pub type NewLines = fn(&Take<'_>) -> Box<dyn Lines>;

/// One file that is played.
#[derive(Clone, Copy, Debug)]
pub struct Take<'a> {
    /// Who played it in.
    pub setting: &'a Setting,
    /// Name of the source.
    pub source: &'a SourceId,
    /// Name of the file up to its first dot.
    pub name: &'a str,
}

/// What recordings are played with.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Hashes and classes for what may not leave.
    pub reducer: Arc<Reducer>,
    /// Counters, which nobody reads.
    pub telemetry: Arc<Telemetry>,
    /// Whether pushed events may carry names of built-in sources.
    pub allow_builtin: bool,
}

/// Turns the lines of one file into events.
pub trait Lines {
    /// One record, and when it was there to be read.
    ///
    /// # Errors
    /// The record is left out and counted by this reason.
    fn take(&mut self, record: &[u8], at: Timestamp, out: &mut Vec<Event>) -> Result<(), &'static str>;

    /// About once a second between two records: the time for conclusions from what did not come.
    fn pass(&mut self, _now: Timestamp, _out: &mut Vec<Event>) {}
}

/// What came of recordings.
#[derive(Debug, Default)]
pub struct Played {
    /// Events with the moment at which they became known, each file's in order.
    pub events: Vec<(Timestamp, Event)>,
    /// Records that were read.
    pub records: u64,
    /// Records that could not be used, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Records of kinds that this version does not know, by kind.
    pub unknown: BTreeMap<String, u64>,
}

/// Why a recording could not be played.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct Unplayable {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: io::Error,
}

/// A record that is dated further ahead than this of the one behind it has a wrong time.
const MAX_AHEAD_MS: i64 = 5 * 60_000;

/// A line with its time; everything else is the form's business.
#[derive(Deserialize)]
struct Stamp<'a> {
    #[serde(borrow)]
    t: &'a RawValue,
    #[serde(borrow, default)]
    record: Option<&'a RawValue>,
    #[serde(default)]
    connected: Option<bool>,
    #[serde(borrow, default)]
    answer: Option<&'a RawValue>,
}

/// Plays these files of one source.
///
/// # Errors
/// When one of them cannot be read; what is wrong with a record is only counted.
pub fn play(
    def: &SourceDef,
    paths: &[PathBuf],
    setting: &Setting,
    played: &mut Played,
) -> Result<(), Unplayable> {
    let source = SourceId::from(def.name);
    if let Form::Files(files) = def.recorded {
        return files::play(files, &source, paths, setting, played);
    }
    for path in paths {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let take = Take { setting, source: &source, name: name.split('.').next().unwrap_or_default() };
        let done = match def.recorded {
            Form::Own(new) => lines::play_own(new(&take).as_mut(), path, played),
            Form::Stamped(new) => lines::play_stamped(new(&take).as_mut(), path, played),
            Form::Server(live) => server::play(live, &take, path, played),
            // All of them were played at once.
            Form::Files(_) => return Ok(()),
        };
        done.map_err(|why| Unplayable { path: path.clone(), why })?;
    }
    Ok(())
}

/// Hands out the lines of a file that have a time; the others are counted.
fn each_stamped(
    path: &Path,
    played: &mut Played,
    mut each: impl FnMut(Timestamp, Stamp<'_>, &mut Played),
) -> io::Result<()> {
    each_line(path, |line| {
        let WholeLine::Text(line) = line else { return played.refuse("too_long") };
        played.records += 1;
        match Stamp::read(line) {
            Ok((at, stamp)) => each(at, stamp, played),
            Err(reason) => played.refuse(reason),
        }
    })
}

// === impl Played ===

impl Played {
    fn refuse(&mut self, reason: &str) {
        *self.refused.entry(reason.to_owned()).or_default() += 1;
    }

    fn unknown(&mut self, kind: String) {
        *self.unknown.entry(kind).or_default() += 1;
    }

    /// Takes the events of a file, line by line. A line was there to be read when the newest thing was that it or one
    /// before it tells of; what has no time happened with the last thing that has. One that is dated far ahead of the
    /// next says nothing about when that was.
    fn place(&mut self, lines: Vec<Vec<Event>>) {
        let newest = |line: &Vec<Event>| line.iter().filter_map(dated).max();
        let mut known: Vec<Option<Timestamp>> = lines.iter().map(newest).collect();
        let mut next: Option<Timestamp> = None;
        for time in known.iter_mut().rev() {
            let ahead = matches!((*time, next), (Some(time), Some(next)) if time.since(next) > MAX_AHEAD_MS);
            if ahead {
                *time = None;
            } else {
                next = (*time).or(next);
            }
        }
        let Some(mut at) = known.iter().flatten().next().copied() else {
            if !lines.is_empty() {
                self.undated();
            }
            return;
        };
        for (line, time) in lines.into_iter().zip(known) {
            at = time.map_or(at, |time| at.max(time));
            line.into_iter().for_each(|event| self.take_at(at, event));
        }
    }

    /// Nothing of a file has a time, so it has no place in time.
    fn undated(&mut self) {
        self.refuse("undated_file");
    }

    /// Takes an event that became known at a moment; its time is that one if it was given before that was known.
    fn take_at(&mut self, at: Timestamp, mut event: Event) {
        if event.time == Some(Timestamp::default()) {
            event.time = Some(at);
        }
        self.take(at, [event]);
    }

    /// Takes what became known at a moment.
    fn take(&mut self, at: Timestamp, events: impl IntoIterator<Item = Event>) {
        self.events.extend(events.into_iter().map(|mut event| {
            event.observed = at;
            (at, event)
        }));
    }
}

/// The time of an event, unless it is the one that was made up while nothing was known.
fn dated(event: &Event) -> Option<Timestamp> {
    event.time.filter(|time| *time > Timestamp::default())
}

// === impl Stamp ===

impl<'a> Stamp<'a> {
    /// The line and its time.
    fn read(line: &'a [u8]) -> Result<(Timestamp, Self), &'static str> {
        let stamp: Self = serde_json::from_slice(line).map_err(|_| "no_stamp")?;
        let text = stamp.t.get();
        let time = match serde_json::from_str::<f64>(text) {
            Ok(number) => Timestamp::from_number(number),
            Err(_) => Timestamp::parse(text.trim_matches('"')),
        };
        Ok((time.map_err(|_| "time")?, stamp))
    }
}

/// The bytes of a record: those of a text, else the JSON itself.
fn bytes_of(record: &RawValue) -> Vec<u8> {
    match serde_json::from_str::<String>(record.get()) {
        Ok(text) => text.into_bytes(),
        Err(_) => record.get().as_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Fact, SessionId};

    #[test]
    fn a_time_far_ahead_moves_only_its_own_record() {
        let (source, session) = (SourceId::from("codex"), SessionId::from("s"));
        let event = |ms: i64| {
            let mut event = Event::new(&source, &session, Timestamp::default(), Fact::Unknown);
            event.time = Some(Timestamp::from_millis(ms));
            event
        };
        let start = 1_795_965_000_000;
        let lines = [start, start + 90_000_000, 0, start + 60_000, start + 50_000].map(|ms| vec![event(ms)]);
        let mut played = Played::default();
        played.place(lines.into());
        let at: Vec<i64> = played.events.iter().map(|(at, _)| at.as_millis() - start).collect();
        // The third has no time of its own; the last was written behind one that is a little newer.
        assert_eq!(at, [0, 0, 0, 60_000, 60_000]);
        assert_eq!(played.events[2].1.time, Some(Timestamp::from_millis(start)));
    }
}
