//! One file of the registry: which names count, how it is read, and what is taken from it. Everything is optional but
//! the session's id, because the file is no documented interface; fields and words as written by Claude Code 2.1.332.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::{ActionKind, Name, Reducer, SessionId, Timestamp};

/// A file that is larger is none of the registry's: they have about 700 bytes.
const MAX_BYTES: u64 = 64 << 10;
/// Names of a folder that are looked at.
const MAX_NAMES: usize = 1 << 16;
/// Longest name of a domain of process ids that is compared.
const MAX_DOMAIN: usize = 128;
/// A time further ahead than this is none.
const MAX_AHEAD_MS: i64 = 5 * 60_000;
/// Within this time of a change another one may leave no trace in modification time and size.
const RACY_MS: i64 = 2_000;

/// Process ids that have a file.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) pids: BTreeSet<i32>,
    /// All names were seen, so that one that is missing is not there.
    pub(super) complete: bool,
}

/// What tells one content of a file from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    dev: u64,
    ino: u64,
    size: u64,
    modified: (i64, i64),
}

/// What an agent does, as far as its person is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Status {
    /// No status yet.
    Starting,
    Idle,
    /// Busy, or a word that is not known: the set is open.
    Working,
    /// It asks its person.
    Waiting(ActionKind),
    /// A dialog of any kind is open; the person may have opened it.
    Dialog,
}

/// What is taken from a file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) session: SessionId,
    /// Start of the process, in clock ticks since boot.
    pub(super) start: Option<u64>,
    pub(super) domain: Option<String>,
    pub(super) started: Option<Timestamp>,
    pub(super) status: Status,
    /// Since when that is its status.
    pub(super) status_at: Option<Timestamp>,
    pub(super) version: Option<Name>,
    pub(super) entrypoint: Option<Name>,
    pub(super) project: Option<Name>,
    /// When the file was written.
    pub(super) written: Timestamp,
}

/// The files of a folder; `None` where it cannot be listed, be it missing or not ours to read.
pub(super) fn list(folder: &Path) -> Option<Listing> {
    let mut listing = Listing { complete: true, ..Listing::default() };
    for (i, entry) in fs::read_dir(folder).ok()?.enumerate() {
        match entry {
            Ok(entry) if i < MAX_NAMES => listing.pids.extend(pid_of(&entry.file_name())),
            _ => {
                listing.complete = false;
                break;
            }
        }
    }
    Some(listing)
}

/// The process id of `<pid>.json`. The key beside it has another name and is never touched.
fn pid_of(name: &OsStr) -> Option<i32> {
    let digits = name.to_str()?.strip_suffix(".json")?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    plain.then(|| digits.parse().ok()).flatten()
}

/// Reads the file of a process if it changed. `stamp` is what it was at the last look.
pub(super) fn read(path: &Path, stamp: &mut Option<Stamp>, now: Timestamp) -> Option<Vec<u8>> {
    // Before it is opened: nothing but a plain file is, and opening a device can have effects.
    let before = fs::symlink_metadata(path).ok().filter(Metadata::is_file)?;
    if *stamp == Some(Stamp::of(&before)) {
        return None;
    }
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path).ok()?;
    let meta = file.metadata().ok().filter(Metadata::is_file)?;
    let settled = now.since(written(&meta)) > RACY_MS;
    *stamp = settled.then(|| Stamp::of(&meta));
    bounded(&file)
}

fn bounded(file: &File) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MAX_BYTES).then_some(bytes)
}

fn written(meta: &Metadata) -> Timestamp {
    Timestamp::from_millis(meta.mtime().saturating_mul(1000).saturating_add(meta.mtime_nsec() / 1_000_000))
}

/// When a file was written, for choosing among too many.
pub(super) fn written_at(path: &Path) -> Timestamp {
    fs::symlink_metadata(path).map_or(Timestamp::default(), |meta| written(&meta))
}

// === impl Stamp ===

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        let modified = (meta.mtime(), meta.mtime_nsec());
        Self { dev: meta.dev(), ino: meta.ino(), size: meta.size(), modified }
    }
}

// === impl Status ===

impl Status {
    fn of(status: Option<&str>, waiting_for: Option<&str>) -> Self {
        match (status, waiting_for) {
            (None, _) => Self::Starting,
            (Some("idle"), _) => Self::Idle,
            (Some("waiting"), Some("dialog open")) => Self::Dialog,
            (Some("waiting"), waiting_for) => Self::Waiting(match waiting_for {
                // The approval of a plan is told as a permission too.
                Some("permission prompt" | "sandbox request" | "worker request") => ActionKind::Permission,
                Some("input needed") => ActionKind::Question,
                Some("goal proposal") => ActionKind::Confirmation,
                _ => ActionKind::Other,
            }),
            (Some(_), _) => Self::Working,
        }
    }

    /// What the person is asked for, after another status. A dialog that opens while nothing is done was opened by the
    /// person.
    pub(super) fn asks(self, before: Option<Self>) -> Option<ActionKind> {
        match self {
            Self::Waiting(kind) => Some(kind),
            Self::Dialog if !matches!(before, Some(Self::Starting | Self::Idle)) => Some(ActionKind::Other),
            _ => None,
        }
    }

    /// Whether a turn is open as far as the registry knows.
    pub(super) const fn in_turn(self) -> bool {
        matches!(self, Self::Working | Self::Waiting(_))
    }
}

// === impl Entry ===

impl Entry {
    /// Takes what it can from a file's content; `None` where it is not whole, or another process's.
    pub(super) fn parse(bytes: &[u8], pid: i32, now: Timestamp, reducer: &Reducer) -> Option<Self> {
        let Value::Object(map) = serde_json::from_slice(bytes).ok()? else { return None };
        let text = |key: &str| map.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let name = |key: &str| text(key).map(|text| Name::from(reducer.bounded(text).as_str()));
        if map.get("pid").is_some_and(|own| own.as_i64() != Some(pid.into())) {
            return None;
        }
        let time = |key: &str| moment(map.get(key)?, now);
        let status_at = time("statusUpdatedAt");
        Some(Self {
            session: SessionId::from(reducer.bounded(text("sessionId")?).as_str()),
            start: map.get("procStart").and_then(|v| v.as_u64().or_else(|| v.as_str()?.parse().ok())),
            domain: text("pidDomain").filter(|domain| domain.len() <= MAX_DOMAIN).map(str::to_owned),
            started: time("startedAt"),
            status: Status::of(text("status"), text("waitingFor")),
            status_at,
            version: name("version"),
            entrypoint: name("entrypoint"),
            project: text("cwd").and_then(|cwd| reducer.project_of(cwd)).map(|p| Name::from(p.as_str())),
            written: time("updatedAt").max(status_at).or_else(|| time("startedAt")).unwrap_or(now),
        })
    }

    /// Whether a person sits in front: `cli`, or one of the `sdk-…` ways to drive the agent by a program.
    pub(super) fn interactive(&self) -> Option<bool> {
        match self.entrypoint.as_ref()?.as_str() {
            "cli" => Some(true),
            other => other.starts_with("sdk").then_some(false),
        }
    }
}

/// A time in epoch milliseconds or RFC 3339 that can be one.
fn moment(value: &Value, now: Timestamp) -> Option<Timestamp> {
    let time = match value {
        Value::Number(n) => n.as_f64()?,
        Value::String(text) => Timestamp::parse(text).ok()?.as_millis() as f64,
        _ => return None,
    };
    let time = Timestamp::from_number(time).ok()?;
    (time.since(now) <= MAX_AHEAD_MS).then_some(time)
}
