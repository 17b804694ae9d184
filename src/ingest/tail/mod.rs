//! Follows files below some roots: which there are, which grew, which went, in what order they are read. It
//! hands out lines and positions; the runner in `sources` makes records of them.
//!
//! A file is its device and inode. Its *name* (without `.zst`) is the name of a stream: a second file of that name
//! continues or replaces the first one, so the stream is gone only when the last of them is.

mod entry;
mod sweep;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::entry::{Entry, Form, read_packed, read_plain};
use super::discover::RootState;
use super::read::{CHUNK, Line, Place};
use super::watch::{Kernel, Polled, Wake, Watch};
use super::{FileId, Hash, Position};

/// A file modified within this time is read before history.
const LIVE_MS: i64 = 15 * 60 * 1000;
/// A file that changed within this time is looked at between the sweeps.
const RECENT: Duration = Duration::from_secs(10 * 60);

/// Names one followed file for as long as it is followed.
pub type Handle = u64;

/// What to follow.
#[derive(Clone)]
pub struct Options {
    /// Folders, searched recursively.
    pub roots: Vec<PathBuf>,
    /// Whether a file of this name is one of ours.
    pub accepts: fn(&OsStr) -> bool,
    /// The name of the stream a file belongs to, by its path without `.zst`; [`file_name`] for most.
    pub stream: fn(&Path) -> Option<String>,
    /// Files modified longer ago are not read until they change.
    pub max_age_ms: i64,
    /// Keyed hash for fingerprints.
    pub hash: Hash,
    /// Whether a last line without an end says all it has to say: no further byte could change that.
    pub complete: fn(&[u8]) -> bool,
    /// Do without the kernel's word.
    pub poll_only: bool,
    /// What the kernel can tell.
    pub kernel: Kernel,
}

/// Names a stream by its file, wherever that lies.
pub fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// A followed file, for the runner.
#[derive(Clone, Copy, Debug)]
pub struct Followed<'a> {
    /// The stream, as [`Options::stream`] names it.
    pub name: &'a str,
    /// Index of its root.
    pub root: usize,
    /// How far it was read.
    pub position: Position,
    /// Whether it changed lately.
    pub active: bool,
    /// Whether it waits to be read.
    pub waits: bool,
}

/// What a read did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The file is not the one that was read: it starts again, with the next read.
    Restarted,
    /// Lines were handed out, perhaps none.
    Slice(Slice),
}

/// A part of a file that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Whether the position changed.
    pub moved: bool,
    /// There is more to read now; the file stays in its queue.
    pub more: bool,
    /// Lines skipped for their length.
    pub too_long: u64,
}

/// What a look around found, beside files to read.
#[derive(Debug, Default)]
pub struct Look {
    /// It is time to end.
    pub stop: bool,
    /// All roots were swept.
    pub swept: bool,
    /// The kernel said that something happened below a root.
    pub news: bool,
    /// Streams that went away, with what they were followed as.
    pub deleted: Vec<(Handle, String)>,
    /// Files whose stream goes on in another file.
    pub replaced: Vec<Handle>,
    /// Streams whose file has another name now and goes on as another stream.
    pub renamed: Vec<(Handle, String)>,
    /// Roots that have to be polled from now on, by index, or no longer (`None`).
    pub polled: Vec<(usize, Option<Polled>)>,
    /// Files and folders that cannot be read, each told once.
    pub unreadable: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Live,
    History,
}
#[derive(Clone, Copy)]
struct Root {
    state: RootState,
    /// Why it is polled, if it is.
    polled: Option<Polled>,
    /// That it is polled was told.
    told: bool,
}

/// Follows files.
pub struct Tail {
    options: Options,
    wake: Arc<Wake>,
    watch: Watch,
    roots: Vec<Root>,
    files: HashMap<Handle, Entry>,
    by_id: HashMap<FileId, Handle>,
    by_name: HashMap<Arc<str>, Vec<Handle>>,
    last_handle: Handle,
    live: VecDeque<Handle>,
    history: VecDeque<Handle>,
    sweeps: u64,
    next_sweep: Instant,
    earliest_sweep: Instant,
    next_recent: Instant,
    look: Look,
    unreadable: HashSet<u64>,
    buffer: Vec<u8>,
}
// === impl Tail ===

impl Tail {
    /// Follows nothing yet; the first [`Tail::look`] sweeps.
    pub fn new(options: Options, wake: Arc<Wake>) -> Self {
        let watch = Watch::new(&options.roots, &wake, options.poll_only, options.kernel.clone());
        let now = Instant::now();
        Self {
            roots: vec![Root { state: RootState::Missing, polled: None, told: false }; options.roots.len()],
            options,
            wake,
            watch,
            files: HashMap::new(),
            by_id: HashMap::new(),
            by_name: HashMap::new(),
            last_handle: 0,
            live: VecDeque::new(),
            history: VecDeque::new(),
            sweeps: 0,
            next_sweep: now,
            earliest_sweep: now,
            next_recent: now,
            look: Look::default(),
            unreadable: HashSet::new(),
            buffer: Vec::new(),
        }
    }

    /// Waits for something to happen, at most for `timeout`, and looks at what did. `now_ms` is wall time, the
    /// clock of modification times.
    pub fn look(&mut self, timeout: Duration, now_ms: i64) -> Look {
        let due = self.next_sweep.min(self.next_recent).saturating_duration_since(Instant::now());
        let news = self.wake.wait(timeout.min(due));
        if news.rescan {
            self.sweep_soon(Duration::ZERO);
        }
        self.look.news = !news.paths.is_empty() || news.rescan;
        for (path, removed) in news.paths {
            self.touch(&path, removed, now_ms);
        }
        let now = Instant::now();
        if now >= self.next_sweep {
            self.sweep(now_ms);
        } else if now >= self.next_recent {
            self.check_recent(now_ms);
        }
        Look { stop: news.stop, ..std::mem::take(&mut self.look) }
    }
    /// The next file with something to read, live ones first, and whether it is one.
    pub fn next_file(&mut self) -> Option<(Handle, bool)> {
        for lane in [Lane::Live, Lane::History] {
            while let Some(handle) = self.queue(lane).pop_front() {
                // It may have moved to the other lane, or gone.
                if let Some(entry) = self.files.get_mut(&handle)
                    && entry.queued == Some(lane)
                {
                    return Some((handle, lane == Lane::Live));
                }
            }
        }
        None
    }

    /// Whether a file waits that must not wait for history.
    pub fn has_live(&self) -> bool {
        !self.live.is_empty()
    }

    /// Whether any file waits.
    pub fn has_work(&self) -> bool {
        !(self.live.is_empty() && self.history.is_empty())
    }

    /// A followed file.
    pub fn get(&self, handle: Handle) -> Option<Followed<'_>> {
        self.files.get(&handle).map(|e| Followed {
            name: &e.name,
            root: e.root,
            position: e.position(),
            active: e.changed.is_some_and(|at| at.elapsed() < RECENT),
            waits: e.queued.is_some(),
        })
    }

    /// Whether a stream of this name is followed.
    pub fn knows(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Names of all followed streams.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }

    /// Whether a root can be read, as of the last sweep.
    pub fn root_state(&self, root: usize) -> RootState {
        self.roots[root].state
    }

    /// How many of the roots that exist the kernel watches, and how many it does not.
    pub fn watched_roots(&self) -> (usize, usize) {
        let there = || self.roots.iter().filter(|r| r.state != RootState::Missing);
        let polled = there().filter(|r| r.polled.is_some()).count();
        (there().count() - polled, polled)
    }

    /// Goes on at an earlier run's position. False: it belongs to another file, which is read from its head.
    pub fn resume(&mut self, handle: Handle, position: &Position) -> bool {
        let Some(entry) = self.files.get_mut(&handle) else { return false };
        let same = entry.stat.id == position.id;
        if let Form::Packed { done, .. } = &mut entry.form {
            *done = same && position.done;
        } else if !same {
            return false;
        }
        // A compressed file goes on where its plain one was left; its head is checked when it is opened.
        entry.place = Place { offset: position.offset, searched: position.offset };
        entry.prints = position.prints;
        true
    }

    /// Reads a file from its head again.
    pub fn restart(&mut self, handle: Handle) {
        if let Some(entry) = self.files.get_mut(&handle) {
            entry.restart();
        }
    }

    /// Reads a file from its head again, when its turn comes.
    pub fn again(&mut self, handle: Handle) {
        self.restart(handle);
        let Some(entry) = self.files.get(&handle) else { return };
        let lane = entry.queued.unwrap_or(Lane::History);
        if entry.queued.is_none() {
            self.requeue(handle, lane);
        }
    }

    /// The first bytes of a plain file, at most `length` of them; none if it cannot be read.
    pub fn head(&self, handle: Handle, length: usize) -> Vec<u8> {
        let plain = self.files.get(&handle).filter(|entry| !entry.is_packed());
        let read = plain.and_then(|entry| std::fs::File::open(&entry.path).ok()).and_then(|file| {
            let mut head = Vec::new();
            file.take(length as u64).read_to_end(&mut head).ok()?;
            Some(head)
        });
        read.unwrap_or_default()
    }

    /// Reads from a file of [`Tail::next_file`]: whole lines, up to `budget` bytes or until `on_line` breaks.
    pub fn read(
        &mut self,
        handle: Handle,
        budget: u64,
        on_line: &mut dyn FnMut(Line<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        let Some(entry) = self.files.get_mut(&handle) else { return Outcome::Slice(Slice::default()) };
        let lane = entry.queued.take().unwrap_or(Lane::History);
        let before = entry.place.offset;
        let outcome = match &entry.form {
            Form::Plain => read_plain(entry, &mut self.buffer, &self.options, budget, on_line),
            Form::Packed { .. } => read_packed(entry, &self.options, budget, on_line),
        };
        // One long line must not hold its memory for ever.
        if self.buffer.capacity() > 8 * CHUNK {
            self.buffer = Vec::new();
        }
        match outcome {
            Ok(Some(mut slice)) => {
                slice.moved |= entry.place.offset != before;
                if slice.more {
                    self.requeue(handle, lane);
                }
                Outcome::Slice(slice)
            }
            Ok(None) => {
                entry.restart();
                self.requeue(handle, lane);
                Outcome::Restarted
            }
            Err(e) => {
                entry.failed = true;
                if e.kind() == io::ErrorKind::NotFound {
                    self.sweep_soon(Duration::ZERO);
                } else {
                    let path = entry.path.clone();
                    self.cannot_read(&path);
                }
                Outcome::Slice(Slice {
                    moved: self.files[&handle].place.offset != before,
                    ..Slice::default()
                })
            }
        }
    }

    fn queue(&mut self, lane: Lane) -> &mut VecDeque<Handle> {
        match lane {
            Lane::Live => &mut self.live,
            Lane::History => &mut self.history,
        }
    }

    /// A file with more to read: live ones take turns, history goes on with the one it is at.
    fn requeue(&mut self, handle: Handle, lane: Lane) {
        if let Some(entry) = self.files.get_mut(&handle) {
            entry.queued = Some(lane);
        }
        match lane {
            Lane::Live => self.live.push_back(handle),
            Lane::History => self.history.push_front(handle),
        }
    }

    /// Puts a file in the lane its age gives, unless it is too old. One that was seen to grow is live, whatever the
    /// clocks of its writer and of this machine say.
    fn enqueue(&mut self, handle: Handle, now_ms: i64, grew: bool) {
        let Some(entry) = self.files.get_mut(&handle) else { return };
        let age = now_ms.saturating_sub(entry.stat.mtime_ms);
        if age > self.options.max_age_ms && !grew {
            return;
        }
        let live = (age < LIVE_MS || grew) && !entry.is_packed();
        let lane = if live { Lane::Live } else { Lane::History };
        if entry.queued == Some(lane) || entry.queued == Some(Lane::Live) {
            return;
        }
        entry.queued = Some(lane);
        self.queue(lane).push_back(handle);
    }

    /// Brings the next sweep forward.
    fn sweep_soon(&mut self, after: Duration) {
        let at = (Instant::now() + after).max(self.earliest_sweep);
        self.next_sweep = self.next_sweep.min(at);
    }

    fn cannot_read(&mut self, path: &Path) {
        use std::os::unix::ffi::OsStrExt as _;
        if self.unreadable.insert((self.options.hash)(path.as_os_str().as_bytes())) {
            self.look.unreadable += 1;
        }
    }
}
