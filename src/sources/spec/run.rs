//! Looks at the status files of the configured project folders, several times a second, on a thread of its own.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::task::JoinHandle;

use super::lifecycle::Times;
use super::status::{Rewrite, Status};
use super::{DEF, STATUS_FILES};
use crate::clock::Clock;
use crate::event::{Batch, Cursor, Name, Reducer, SessionId, SourceHealth, SourceId, Timestamp};
use crate::ingest::poll::{Poll, Seen};
use crate::sources::Context;
use crate::sources::files::store_of;
use crate::telemetry::Telemetry;

/// A file that cannot be decoded so long after it was written was not caught half written.
const HALF_FOR_MS: i64 = 500;

/// How often is looked.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between two looks.
    pub every: Duration,
    /// Between two looks where a file was empty or half.
    pub soon: Duration,
}

/// A project folder.
struct Root {
    folder: PathBuf,
    endpoint: Name,
    store: String,
    /// Where its position is kept.
    key: u64,
    files: Vec<Poll>,
    status: Status,
    /// When the file was written that could not be decoded, and was counted.
    malformed: Option<i64>,
    too_large: bool,
    checkpoint: Vec<u8>,
    up: bool,
    since: Timestamp,
}

/// The running source.
struct Run {
    source: SourceId,
    roots: Vec<Root>,
    /// Each was looked at once.
    scanned: bool,
    pace: Pace,
    max_age_ms: i64,
    out: Sender<Batch>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
}

// === impl Pace ===

impl Default for Pace {
    fn default() -> Self {
        Self { every: Duration::from_millis(200), soon: Duration::from_millis(20) }
    }
}

/// Starts the source; the task ends when `stop` of the context turns true or nobody takes its batches any more.
pub fn start_in(context: Context, pace: Pace) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut stop = context.stop.clone();
        let (stopper, stopped) = channel::<()>();
        // Reading blocks, and goes on for as long as the source does.
        let mut run = tokio::task::spawn_blocking(move || Run::new(context, pace).until(&stopped));
        // An error means that whoever could stop us is gone.
        let told = async { stop.wait_for(|stop| *stop).await.map(drop) };
        let ended = tokio::select! {
            ended = &mut run => ended,
            _ = told => {
                drop(stopper);
                run.await
            }
        };
        if ended.is_err_and(|e| e.is_panic()) {
            tracing::error!(source = DEF.name, "reading status files ended by a bug");
        }
    })
}

/// Names of the orchestrations in these folders: that of the folder, with a hash where two are called the same.
fn names(folders: &[PathBuf], reducer: &Reducer) -> Vec<(Name, SessionId)> {
    let name = |folder: &PathBuf| {
        let whole = folder.canonicalize().unwrap_or_else(|_| folder.clone());
        let text = whole.file_name().map(|n| n.to_string_lossy().into_owned());
        text.and_then(|t| reducer.project_of(&t)).unwrap_or_else(|| DEF.name.to_owned())
    };
    let names: Vec<String> = folders.iter().map(name).collect();
    let named = |(folder, name): (&PathBuf, &String)| {
        let alone = names.iter().filter(|n| *n == name).count() == 1;
        let id = if alone {
            name.clone()
        } else {
            let hash = reducer.hash(folder.as_os_str().as_encoded_bytes());
            reducer.bounded(&format!("{name}-{:08x}", hash >> 32))
        };
        (Name::from(name.as_str()), SessionId::from(id.as_str()))
    };
    folders.iter().zip(&names).map(named).collect()
}

/// The configured folders, each once.
fn folders(context: &Context) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for folder in &context.roots {
        let same = |other: &PathBuf| {
            other == folder
                || matches!((other.canonicalize(), folder.canonicalize()), (Ok(a), Ok(b)) if a == b)
        };
        if !all.iter().any(same) {
            all.push(folder.clone());
        }
    }
    all
}

// === impl Run ===

impl Run {
    fn new(context: Context, pace: Pace) -> Self {
        let source = SourceId::from(DEF.name);
        let folders = folders(&context);
        let now = context.clock.now();
        let names = names(&folders, &context.reducer);
        let root = |(folder, (project, session)): (PathBuf, (Name, SessionId))| {
            let path = folder.as_os_str().as_encoded_bytes();
            let key = context.reducer.hash_all(&[DEF.name.as_bytes(), b"root", path]);
            let kept: Option<&Vec<u8>> = HashMap::get(&context.cursors, &key);
            let status = Status::new(source.clone(), session.clone(), project, context.reducer.clone());
            Root {
                endpoint: Name::from(session.as_str()),
                store: store_of(&folder),
                key,
                files: STATUS_FILES.iter().map(|file| Poll::new(folder.join(file))).collect(),
                status: match kept {
                    Some(kept) => status.restored(kept),
                    None => status,
                },
                malformed: None,
                too_large: false,
                checkpoint: kept.cloned().unwrap_or_default(),
                up: true,
                since: now,
                folder,
            }
        };
        Self {
            roots: folders.into_iter().zip(names).map(root).collect(),
            source,
            scanned: false,
            pace,
            max_age_ms: i64::try_from(context.max_age.as_millis()).unwrap_or(i64::MAX),
            out: context.out,
            telemetry: context.telemetry,
            clock: context.clock,
        }
    }

    /// Looks until told to stop.
    fn until(mut self, stopped: &Receiver<()>) {
        let polled = self.telemetry.watched_roots.with_label_values(&["polling"]);
        let watched = i64::try_from(self.roots.len()).unwrap_or(i64::MAX);
        polled.add(watched);
        if self.roots.is_empty() {
            self.say_nothing_to_do();
        }
        loop {
            let mut wait = self.pace.every;
            let mut heard = true;
            for at in 0..self.roots.len() {
                if self.look(at) {
                    wait = self.pace.soon;
                }
                heard &= !self.out.is_closed();
            }
            if !std::mem::replace(&mut self.scanned, true) {
                for at in 0..self.roots.len() {
                    let health = Some(self.health(at));
                    self.send(Batch { health, ..Batch::default() });
                }
            }
            self.telemetry.last_scan.set(self.clock.now().as_seconds());
            if !heard || stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        polled.sub(watched);
    }

    /// Without folders the first scan is over at once.
    fn say_nothing_to_do(&self) {
        let (endpoint, since) = (Name::from("none"), self.clock.now());
        let health = SourceHealth { source: self.source.clone(), endpoint, up: true, since, scanned: true };
        self.send(Batch { health: Some(health), ..Batch::default() });
    }

    /// Looks at one project; true where its file was caught unfinished.
    fn look(&mut self, at: usize) -> bool {
        let now = self.clock.now();
        let root = &mut self.roots[at];
        let mut batch = Batch::default();
        let newest = (0..root.files.len()).filter_map(|i| Some((root.files[i].mtime_ms()?, i))).max();
        let readable = root.folder.read_dir().is_ok();
        let mut seen = match newest {
            Some((mtime_ms, _)) if now.as_millis().saturating_sub(mtime_ms) > self.max_age_ms => Seen::Same,
            Some((_, i)) => root.files[i].look(now.as_millis()),
            None => Seen::Missing,
        };
        let mut unfinished = seen == Seen::Unfinished;
        let up = readable && seen != Seen::Unreadable;
        if let (Seen::Content { bytes, mtime_ms }, Some((_, i))) = (&mut seen, newest) {
            let rewrite = Rewrite { bytes, mtime: Timestamp::from_millis(*mtime_ms), observed: now };
            let mut times = Times::beside(root.files[i].path());
            match root.status.decode(&rewrite, &mut times, &mut batch.events) {
                Ok(()) => {
                    (root.malformed, root.too_large) = (None, false);
                    if !batch.events.is_empty() {
                        self.telemetry.records.with_label_values(&[DEF.name]).inc();
                        self.telemetry
                            .source_last_record
                            .with_label_values(&[DEF.name])
                            .set(now.as_seconds());
                    }
                }
                // It may be half: looked at again at once, counted only if it stays so.
                Err(_) if now.since(rewrite.mtime) < HALF_FOR_MS => {
                    root.files[i].again();
                    unfinished = true;
                }
                Err(error) if root.malformed != Some(*mtime_ms) => {
                    root.malformed = Some(*mtime_ms);
                    let endpoint = root.endpoint.as_str();
                    self.telemetry.decode_errors.with_label_values(&[DEF.name, error.as_str()]).inc();
                    tracing::warn!(source = DEF.name, endpoint, %error, "status file cannot be decoded");
                }
                Err(_) => {}
            }
        } else if seen == Seen::TooLarge && !root.too_large {
            root.too_large = true;
            self.telemetry.decode_errors.with_label_values(&[DEF.name, "too_long"]).inc();
            tracing::warn!(source = DEF.name, endpoint = root.endpoint.as_str(), "status file is too large");
        }
        root.status.left_alone(now, &mut batch.events);
        for word in root.status.unknown_words() {
            self.telemetry.unknown_record(DEF.name, word);
        }
        let dropped = root.status.dropped_numbers();
        if dropped > 0 {
            self.telemetry.decode_errors.with_label_values(&[DEF.name, "number"]).inc_by(dropped);
        }
        let checkpoint = root.status.checkpoint();
        if checkpoint != root.checkpoint {
            batch.cursors.push(Cursor { key: root.key, value: Some(checkpoint.clone()) });
            root.checkpoint = checkpoint;
        }
        if up != root.up {
            (root.up, root.since) = (up, now);
            batch.health = self.scanned.then(|| self.health(at));
        }
        if !batch.events.is_empty() || !batch.cursors.is_empty() || batch.health.is_some() {
            self.send(batch);
        }
        unfinished
    }

    fn health(&self, at: usize) -> SourceHealth {
        let root = &self.roots[at];
        let labels = [DEF.name, root.endpoint.as_str()];
        self.telemetry.source_up.with_label_values(&labels).set(i64::from(root.up));
        let [source, endpoint] = labels;
        self.telemetry.source_info.with_label_values(&[source, endpoint, root.store.as_str()]).set(1);
        let (endpoint, up, since) = (root.endpoint.clone(), root.up, root.since);
        SourceHealth { source: self.source.clone(), endpoint, up, since, scanned: self.scanned }
    }

    fn send(&self, batch: Batch) {
        // Nobody to send to is the end, which the loop notices.
        let _ = self.out.blocking_send(batch);
    }
}
