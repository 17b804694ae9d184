//! One way through calls by start: what has been seen so far, and the signals at the end. Stored it is what is left of
//! calls that are no longer kept; then its tables are bounded.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::Signals;
use super::lines::Reads;
use super::log::Call;
use crate::event::{Timestamp, ToolClass};

/// Calls of the window N.
pub const WINDOW: usize = 60;
/// Keys that outlive [`Walk::trim`].
const MAX_KEYS: usize = 256;
/// Files that do.
const MAX_FILES: usize = 64;
/// A repeat after so long is paced.
const PACE_MS: i64 = 30_000;
/// Longest cycle that is looked for.
const MAX_CYCLE: usize = 5;
/// First calls, errors of a run and repeats whose time is kept, for saying since when a limit is passed.
const MAX_MARKS: usize = 64;

/// What a walk knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Walk {
    /// Calls so far.
    pub(super) calls: u32,
    /// Start of the first.
    pub(super) first: Option<Timestamp>,
    keys: BTreeMap<u32, Seen>,
    files: BTreeMap<u32, Reads>,
    run: ErrorRun,
    window: VecDeque<Entry>,
    nothing_new: u32,
    repeated_max: u32,
    /// Starts of the first calls.
    starts: Vec<Timestamp>,
    /// For each percent from 0: since when the share of the window that brings nothing new has not been lower.
    shares: Vec<Timestamp>,
    /// When `repeated_max` became 1, 2, …
    repeats: Vec<Timestamp>,
}

/// Calls with one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    /// Start of the newest.
    start: Timestamp,
    has_time: bool,
    /// The last output that is known.
    output: u32,
    /// How many brought nothing new.
    nothing_new: u32,
}

/// Errors of one kind, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ErrorRun {
    error: u32,
    tool: u32,
    length: u32,
    starts: Vec<Timestamp>,
}

/// A call of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    key: u32,
    target: u32,
    new: bool,
    /// First and last line that were read of the target; `Some(None)`: all there are.
    read: Option<Option<(u32, u32)>>,
}

// === impl Walk ===

impl Walk {
    /// The next call.
    pub(super) fn step(&mut self, call: &Call) {
        self.count(call);
        let read = self.read(call);
        let seen = self.keys.get(&call.key);
        let by_key = match seen {
            None => true,
            Some(last) => !call.is_read() && (last.differs(call) || last.is_paced(call)),
        };
        let new = read.map_or(by_key, |(_, news)| news);

        let known = seen.copied();
        let repeats = known.map_or(0, |s| s.nothing_new) + u32::from(!new);
        let output = if call.output != 0 { call.output } else { known.map_or(0, |s| s.output) };
        let seen = Seen { start: call.start, has_time: call.has_time(), output, nothing_new: repeats };
        self.keys.insert(call.key, seen);
        if repeats > self.repeated_max {
            self.repeated_max = repeats;
            if self.repeats.len() < MAX_MARKS {
                self.repeats.push(call.start);
            }
        }

        self.run.step(call);
        self.push(
            Entry { key: call.key, target: call.target, new, read: read.map(|(lines, _)| lines) },
            call.start,
        );
    }

    /// A call of which only the number matters any more.
    pub(super) fn count(&mut self, call: &Call) {
        self.calls = self.calls.saturating_add(1);
        self.first = self.first.into_iter().chain([call.start]).min();
        if self.starts.len() < MAX_MARKS {
            self.starts.push(call.start);
        }
    }

    /// The lines a read takes in, `None` for all, and whether they are news. A read that failed or was cut off got
    /// none.
    fn read(&mut self, call: &Call) -> Option<(Option<(u32, u32)>, bool)> {
        if !call.is_read() || call.failed() || call.was_cut() {
            return None;
        }
        let [first, last, length] = call.lines;
        let lines = (first > 0).then_some((first, last));
        let reads = self.files.entry(call.target).or_default();
        if length > 0 {
            reads.length = length;
        }
        reads.last = call.start;
        Some((lines, reads.read(lines)))
    }

    fn push(&mut self, entry: Entry, start: Timestamp) {
        self.nothing_new += u32::from(!entry.new);
        self.window.push_back(entry);
        if self.window.len() > WINDOW
            && let Some(left) = self.window.pop_front()
        {
            self.nothing_new -= u32::from(!left.new);
        }
        let percent = self.nothing_new as usize * 100 / self.window.len();
        self.shares.resize(percent + 1, start);
    }

    /// What another session's calls were before these. How the older calls of two sessions alternated is no longer
    /// known: what depends on it follows the first one's, until the calls that are kept fill the window.
    pub(super) fn join(&mut self, other: &Self) {
        if self.calls == 0 {
            self.clone_from(other);
            return;
        }
        self.calls = self.calls.saturating_add(other.calls);
        self.first = self.first.into_iter().chain(other.first).min();
        for (key, theirs) in &other.keys {
            let own = self.keys.entry(*key).or_insert(Seen { nothing_new: 0, ..*theirs });
            let nothing_new = own.nothing_new + theirs.nothing_new;
            *own = Seen { nothing_new, ..if theirs.start > own.start { *theirs } else { *own } };
            self.repeated_max = self.repeated_max.max(nothing_new);
        }
        for (file, theirs) in &other.files {
            self.files.entry(*file).or_default().join(theirs);
        }
        if other.run.starts.last() > self.run.starts.last() {
            self.run = other.run.clone();
        }
        self.starts.extend_from_slice(&other.starts);
        self.starts.sort_unstable();
        self.starts.truncate(MAX_MARKS);
        self.repeats.clear();
        self.repeats.resize((self.repeated_max as usize).min(MAX_MARKS), self.first.unwrap_or_default());
    }

    /// Brings the tables within their bounds: what was repeated most and seen last stays.
    pub(super) fn trim(&mut self) {
        let surplus = self.keys.len().saturating_sub(MAX_KEYS);
        let mut ranked: Vec<_> = self.keys.iter().map(|(k, s)| (s.nothing_new > 0, s.start, *k)).collect();
        ranked.sort_unstable();
        for (_, _, key) in &ranked[..surplus] {
            self.keys.remove(key);
        }
        let surplus = self.files.len().saturating_sub(MAX_FILES);
        let mut ranked: Vec<_> = self.files.iter().map(|(file, reads)| (reads.last, *file)).collect();
        ranked.sort_unstable();
        for (_, file) in &ranked[..surplus] {
            self.files.remove(file);
        }
        self.files.values_mut().for_each(Reads::trim);
    }

    /// The signals after the calls so far.
    pub fn signals(&self) -> Signals {
        let keys: Vec<u32> = self.window.iter().map(|e| e.key).collect();
        let targets: Vec<u32> = self.window.iter().map(|e| e.target).filter(|t| *t != 0).collect();
        let streak = keys.iter().rev().take_while(|k| keys.last() == Some(k)).count();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Signals {
            calls_since_progress: self.calls,
            window_calls: number(self.window.len()),
            nothing_new: self.nothing_new,
            error_streak: self.run.length,
            repeated_call_max: self.repeated_max,
            read_coverage: self.coverage(),
            distinct_keys: number(groups(&keys).count()),
            top_target_calls: number(groups(&targets).max().unwrap_or(0)),
            call_streak: number(streak),
            cycle_repeats: number((1..=MAX_CYCLE).map(|length| cycles(&keys, length)).max().unwrap_or(0)),
        }
    }

    fn coverage(&self) -> Option<f32> {
        let mut lines: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
        for entry in &self.window {
            let (Some(read), Some(file)) = (entry.read, self.files.get(&entry.target)) else { continue };
            if file.length > 0 {
                let (first, last) = read.unwrap_or((1, file.length));
                let got = (u64::from(last.min(file.length)) + 1).saturating_sub(first.into());
                lines.entry(entry.target).or_insert((0, file.length)).0 += got;
            }
        }
        lines.into_values().map(|(read, length)| read as f32 / length as f32).max_by(f32::total_cmp)
    }

    /// When the `n`th call began, as far as that is kept.
    pub fn nth_call(&self, n: u32) -> Option<Timestamp> {
        nth(&self.starts, n)
    }

    /// Since when the share of the window that brings nothing new has been so high, in percent.
    pub fn nothing_new_since(&self, percent: u32) -> Option<Timestamp> {
        self.shares.get(percent as usize).copied()
    }

    /// When the `n`th error of the run began.
    pub fn nth_error(&self, n: u32) -> Option<Timestamp> {
        nth(&self.run.starts, n)
    }

    /// When a call was repeated for nothing for the `n`th time.
    pub fn nth_repeat(&self, n: u32) -> Option<Timestamp> {
        nth(&self.repeats, n)
    }
}

// === impl Seen ===

impl Seen {
    fn differs(&self, call: &Call) -> bool {
        self.output != 0 && call.output != 0 && self.output != call.output
    }

    fn is_paced(&self, call: &Call) -> bool {
        matches!(call.class, ToolClass::Shell | ToolClass::Wait)
            && !call.failed()
            && (self.has_time && call.has_time())
            && call.start.since(self.start) >= PACE_MS
    }
}

// === impl ErrorRun ===

impl ErrorRun {
    fn step(&mut self, call: &Call) {
        if call.failed() {
            if call.error != self.error {
                *self = Self { error: call.error, tool: call.tool, ..Self::default() };
            }
            self.length = self.length.saturating_add(1);
            if self.starts.len() < MAX_MARKS {
                self.starts.push(call.start);
            }
            return;
        }
        // Looking around is no way out of an error.
        let looks = matches!(call.class, ToolClass::Read | ToolClass::Search | ToolClass::Plan);
        if call.succeeded() && call.tool != self.tool && !looks {
            *self = Self::default();
        }
    }
}

/// The `n`th of some moments, else the last that was kept.
fn nth(moments: &[Timestamp], n: u32) -> Option<Timestamp> {
    moments.get(n.saturating_sub(1) as usize).or(moments.last()).copied()
}

/// Sizes of the groups of equal hashes.
fn groups(hashes: &[u32]) -> impl Iterator<Item = usize> {
    let mut sorted = hashes.to_vec();
    sorted.sort_unstable();
    let sizes: Vec<usize> = sorted.chunk_by(|a, b| a == b).map(<[u32]>::len).collect();
    sizes.into_iter()
}

/// How often the last `length` keys stand at the end, one time after the other.
fn cycles(keys: &[u32], length: usize) -> usize {
    let mut blocks = keys.rchunks_exact(length);
    let Some(last) = blocks.next() else { return 0 };
    1 + blocks.take_while(|block| *block == last).count()
}
