//! Follows files below some roots: which there are, which grew, which went, in what order they are read. It
//! hands out lines and positions; the runner in `sources` makes records of them.
//!
//! A file is its device and inode. Its *name* (without `.zst`) is the name of a stream: a second file of that name
//! continues or replaces the first one, so the stream is gone only when the last of them is.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::discover::{RootState, Visit, walk};
use super::packed::Packed;
use super::read::{CHUNK, HEAD, Line, Place, head_of, read_lines};
use super::watch::{Wake, Watch};
use super::{FileId, Hash, Position, Stat};

/// A file modified within this time is read before history.
const LIVE_MS: i64 = 15 * 60 * 1000;
/// A file that changed within this time is looked at between the sweeps.
const RECENT: Duration = Duration::from_secs(10 * 60);
/// Time between two looks at those; where the kernel tells nothing, this is what finds growth.
const RECENT_EVERY: Duration = Duration::from_secs(1);
const RECENT_EVERY_POLLING: Duration = Duration::from_millis(200);
/// Time between two sweeps over everything.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const SWEEP_EVERY_POLLING: Duration = Duration::from_secs(1);
/// A sweep may cost this part of the time, and a hastened one a tenth.
const SWEEP_SHARE: u32 = 400;
const HASTY_SHARE: u32 = 10;
/// A file must be missing for this long before it counts as gone: it may be on its way to another folder, which
/// was listed before it arrived there.
const CONFIRM: Duration = Duration::from_millis(250);
/// Extension of compressed files.
const PACKED: &str = ".zst";

/// Names one followed file for as long as it is followed.
pub type Handle = u64;

/// What to follow.
#[derive(Clone)]
pub struct Options {
    /// Folders, searched recursively.
    pub roots: Vec<PathBuf>,
    /// Whether a file of this name is one of ours.
    pub accepts: fn(&OsStr) -> bool,
    /// Files modified longer ago are not read until they change.
    pub max_age_ms: i64,
    /// Keyed hash for the fingerprints of heads.
    pub hash: Hash,
    /// Do without the kernel's word.
    pub poll_only: bool,
}

/// A followed file, for the runner.
#[derive(Clone, Copy, Debug)]
pub struct Followed<'a> {
    /// The stream: the file's name without `.zst`.
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
    /// Streams that went away, with what they were followed as.
    pub deleted: Vec<(Handle, String)>,
    /// Files whose stream goes on in another file.
    pub replaced: Vec<Handle>,
    /// Files and folders that cannot be read, each told once.
    pub unreadable: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Live,
    History,
}

/// Plain files grow, compressed ones do not.
enum Form {
    Plain,
    Packed { reader: Option<Box<Packed>>, done: bool },
}

struct Entry {
    name: Arc<str>,
    path: PathBuf,
    root: usize,
    stat: Stat,
    form: Form,
    place: Place,
    head: u64,
    queued: Option<Lane>,
    /// When a change was seen last.
    changed: Option<Instant>,
    missing: Option<Instant>,
    /// It could not be opened: worth another try at each sweep.
    failed: bool,
    /// The sweep that saw it last.
    sweep: u64,
}

#[derive(Clone, Copy)]
struct Root {
    state: RootState,
    watched: bool,
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

/// What one walk found.
struct Walk<'a> {
    accepts: fn(&OsStr) -> bool,
    watch: &'a mut Watch,
    watched: bool,
    files: Vec<(PathBuf, Stat)>,
    unreadable: Vec<PathBuf>,
}

// === impl Walk ===

impl Visit for Walk<'_> {
    fn accepts(&self, name: &OsStr) -> bool {
        (self.accepts)(name)
    }

    fn folder(&mut self, path: &Path, id: FileId) {
        self.watched &= self.watch.folder(path, id);
    }

    fn file(&mut self, path: PathBuf, stat: Stat) {
        self.files.push((path, stat));
    }

    fn unreadable(&mut self, path: &Path) {
        self.unreadable.push(path.to_owned());
    }
}

// === impl Entry ===

impl Entry {
    fn position(&self) -> Position {
        let done = matches!(self.form, Form::Packed { done: true, .. });
        Position { id: self.stat.id, offset: self.place.offset, head: self.head, done }
    }

    fn is_packed(&self) -> bool {
        matches!(self.form, Form::Packed { .. })
    }

    /// Begins again at the file's head.
    fn restart(&mut self) {
        self.place = Place::default();
        self.head = 0;
        if let Form::Packed { reader, done } = &mut self.form {
            (*reader, *done) = (None, false);
        }
    }

    /// Whether the path still leads to the file. `None`: it cannot be told.
    fn still_there(&self) -> Option<bool> {
        match fs::metadata(&self.path) {
            Ok(meta) => Some(Stat::of(&meta).id == self.stat.id),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Some(false),
            Err(_) => None,
        }
    }
}

// === impl Tail ===

impl Tail {
    /// Follows nothing yet; the first [`Tail::look`] sweeps.
    pub fn new(options: Options, wake: Arc<Wake>) -> Self {
        let watch = Watch::new(&options.roots, &wake, options.poll_only);
        let now = Instant::now();
        Self {
            roots: vec![Root { state: RootState::Missing, watched: false }; options.roots.len()],
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

    /// Looks at one path now, as if the kernel had named it.
    pub fn look_at(&mut self, path: &Path, now_ms: i64) {
        self.touch(path, false, now_ms);
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
        (there().filter(|r| r.watched).count(), there().filter(|r| !r.watched).count())
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
        entry.head = position.head;
        true
    }

    /// Reads a file from its head again.
    pub fn restart(&mut self, handle: Handle) {
        if let Some(entry) = self.files.get_mut(&handle) {
            entry.restart();
        }
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
            Form::Plain => read_plain(entry, &mut self.buffer, &self.options.hash, budget, on_line),
            Form::Packed { .. } => read_packed(entry, &self.options.hash, budget, on_line),
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

    /// Puts a file in the lane its age gives, unless it is too old.
    fn enqueue(&mut self, handle: Handle, now_ms: i64) {
        let Some(entry) = self.files.get_mut(&handle) else { return };
        let age = now_ms.saturating_sub(entry.stat.mtime_ms);
        if age > self.options.max_age_ms {
            return;
        }
        let lane = if age < LIVE_MS && !entry.is_packed() { Lane::Live } else { Lane::History };
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

    /// Looks at one path the kernel named.
    fn touch(&mut self, path: &Path, removed: bool, now_ms: i64) {
        let was_folder = removed && self.watch.forget(path);
        let in_root = |(_, root): &(usize, &PathBuf)| path.starts_with(root);
        let inside = self.options.roots.iter().enumerate().filter(in_root);
        let Some(root) = inside.max_by_key(|(_, root)| root.as_os_str().len()).map(|(i, _)| i) else {
            // Above a root that was or is missing.
            return self.sweep_soon(Duration::ZERO);
        };
        let accepted = path.file_name().is_some_and(self.options.accepts);
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => {
                let (_, found) = self.walk(root, path);
                if path == self.options.roots[root] || found.iter().any(|(p, _)| is_packed(p)) {
                    self.sweep_soon(Duration::ZERO);
                }
                for (path, stat) in found.into_iter().filter(|(p, _)| !is_packed(p)) {
                    self.observe(path, stat, root, now_ms);
                }
            }
            // Which of two twins counts is seen only when both are.
            Ok(_) if accepted && is_packed(path) => self.sweep_soon(Duration::ZERO),
            Ok(meta) if accepted => self.observe(path.to_owned(), Stat::of(&meta), root, now_ms),
            Ok(_) => {}
            Err(_) if accepted || was_folder => self.sweep_soon(Duration::ZERO),
            Err(_) => {}
        }
    }

    /// Walks a folder of a root, watching what it enters.
    fn walk(&mut self, root: usize, from: &Path) -> (RootState, Vec<(PathBuf, Stat)>) {
        let mut walked = Walk {
            accepts: self.options.accepts,
            watch: &mut self.watch,
            watched: true,
            files: Vec::new(),
            unreadable: Vec::new(),
        };
        let state = walk(from, &mut walked);
        let Walk { watched, mut files, unreadable, .. } = walked;
        self.roots[root].watched = watched && (self.roots[root].watched || from == self.options.roots[root]);
        for path in unreadable {
            self.cannot_read(&path);
        }
        files.sort_by_key(|(_, stat)| std::cmp::Reverse(stat.mtime_ms));
        (state, files)
    }

    /// Takes in what is known about a plain file now.
    fn observe(&mut self, path: PathBuf, stat: Stat, root: usize, now_ms: i64) {
        let Some(name) = stream_name(&path) else { return };
        let known = self.by_id.get(&stat.id).copied().and_then(|h| Some((h, self.files.get_mut(&h)?)));
        if let Some((handle, entry)) = known {
            // Two paths to one file: the first one stays, as long as it is one.
            if entry.path != path && entry.still_there() == Some(true) {
                entry.sweep = self.sweeps;
                return;
            }
            if !entry.is_packed() && *entry.name == *name {
                let changed = entry.stat.size != stat.size || entry.stat.mtime_ms != stat.mtime_ms;
                let worth_reading = changed || entry.failed || entry.path != path;
                entry.sweep = self.sweeps;
                (entry.path, entry.root, entry.stat) = (path, root, stat);
                (entry.missing, entry.failed) = (None, false);
                if changed {
                    entry.changed = Some(Instant::now());
                }
                if worth_reading {
                    self.enqueue(handle, now_ms);
                }
                return;
            }
            // The inode serves another file by now.
            self.by_id.remove(&stat.id);
            entry.missing.get_or_insert_with(Instant::now);
            self.sweep_soon(CONFIRM);
        }
        // Plain wins over compressed.
        let twins: Vec<_> = self.siblings(&name).filter(|h| self.files[h].is_packed()).collect();
        for twin in twins {
            self.remove(twin);
            self.look.replaced.push(twin);
        }
        self.follow(name, path, stat, root, Form::Plain, now_ms);
    }

    fn follow(&mut self, name: String, path: PathBuf, stat: Stat, root: usize, form: Form, now_ms: i64) {
        self.last_handle += 1;
        let handle = self.last_handle;
        let name: Arc<str> = name.into();
        let recent = now_ms.saturating_sub(stat.mtime_ms) < RECENT.as_millis() as i64;
        self.by_id.insert(stat.id, handle);
        self.by_name.entry(name.clone()).or_default().push(handle);
        let entry = Entry {
            name,
            path,
            root,
            stat,
            form,
            place: Place::default(),
            head: 0,
            queued: None,
            changed: recent.then(Instant::now),
            missing: None,
            failed: false,
            sweep: self.sweeps,
        };
        self.files.insert(handle, entry);
        self.enqueue(handle, now_ms);
    }

    fn siblings(&self, name: &str) -> impl Iterator<Item = Handle> {
        self.by_name.get(name).into_iter().flatten().copied()
    }

    fn remove(&mut self, handle: Handle) -> Option<Entry> {
        let entry = self.files.remove(&handle)?;
        if self.by_id.get(&entry.stat.id) == Some(&handle) {
            self.by_id.remove(&entry.stat.id);
        }
        if let Some(handles) = self.by_name.get_mut(&entry.name) {
            handles.retain(|h| *h != handle);
            if handles.is_empty() {
                self.by_name.remove(&entry.name);
            }
        }
        Some(entry)
    }

    /// Looks at the files that changed lately.
    fn check_recent(&mut self, now_ms: i64) {
        let polling = self.watched_roots().1 > 0;
        self.next_recent = Instant::now() + if polling { RECENT_EVERY_POLLING } else { RECENT_EVERY };
        let recent = self.files.values().filter(|e| e.changed.is_some_and(|at| at.elapsed() < RECENT));
        let looked: Vec<_> = recent.map(|e| (e.path.clone(), e.root, fs::metadata(&e.path))).collect();
        for (path, root, meta) in looked {
            match meta {
                Ok(meta) if !is_packed(&path) => self.observe(path, Stat::of(&meta), root, now_ms),
                Ok(_) => {}
                Err(_) => self.sweep_soon(Duration::ZERO),
            }
        }
    }

    /// Looks at everything below the roots.
    fn sweep(&mut self, now_ms: i64) {
        let began = Instant::now();
        self.sweeps += 1;
        let mut packed = Vec::new();
        for root in 0..self.roots.len() {
            let path = self.options.roots[root].clone();
            let (state, files) = self.walk(root, &path);
            self.roots[root].state = state;
            if state == RootState::Missing {
                self.await_root(&path);
            }
            for (path, stat) in files {
                if is_packed(&path) {
                    packed.push((path, stat, root));
                } else {
                    self.observe(path, stat, root, now_ms);
                }
            }
        }
        self.miss(false);
        for (path, stat, root) in packed {
            self.observe_packed(path, stat, root, now_ms);
        }
        self.miss(true);
        self.confirm_missing();

        let spent = began.elapsed();
        let now = Instant::now();
        let every = if self.watched_roots().1 > 0 { SWEEP_EVERY_POLLING } else { SWEEP_EVERY };
        self.earliest_sweep = now + spent * HASTY_SHARE;
        self.next_sweep = now + every.max(spent * SWEEP_SHARE);
        if self.files.values().any(|e| e.missing.is_some()) {
            self.sweep_soon(CONFIRM);
        }
        self.look.swept = true;
    }

    /// A root that is not there: what lies above it will tell when it comes.
    fn await_root(&mut self, root: &Path) {
        for above in root.ancestors().skip(1) {
            if let Ok(meta) = fs::metadata(above) {
                self.watch.folder(above, Stat::of(&meta).id);
                return;
            }
        }
    }

    /// Takes in a compressed file, after all plain ones.
    fn observe_packed(&mut self, path: PathBuf, stat: Stat, root: usize, now_ms: i64) {
        let Some(name) = stream_name(&path) else { return };
        let plain: Vec<_> = self.siblings(&name).filter(|h| !self.files[h].is_packed()).collect();
        if plain.iter().any(|h| self.files[h].missing.is_none()) {
            return;
        }
        let form = Form::Packed { reader: None, done: false };
        let known = self.by_id.get(&stat.id).copied().filter(|h| self.files[h].is_packed());
        // The plain file was compressed: the stream goes on, at the same offset, in this file.
        let Some(handle) = known.or(plain.first().copied()) else {
            self.by_id.remove(&stat.id);
            return self.follow(name, path, stat, root, form, now_ms);
        };
        let Some(entry) = self.files.get_mut(&handle) else { return };
        let old = entry.stat;
        let rewritten = old.id != stat.id || old.size != stat.size || old.mtime_ms != stat.mtime_ms;
        entry.sweep = self.sweeps;
        (entry.path, entry.root, entry.stat) = (path, root, stat);
        entry.missing = None;
        if rewritten {
            entry.form = form;
            if self.by_id.get(&old.id) == Some(&handle) {
                self.by_id.remove(&old.id);
            }
            self.by_id.insert(stat.id, handle);
            self.enqueue(handle, now_ms);
        }
    }

    /// Marks what a sweep did not see. What lies below a root or folder that cannot be read is not missing.
    fn miss(&mut self, packed: bool) {
        let (sweep, roots) = (self.sweeps, &self.roots);
        let unseen = |e: &&mut Entry| e.sweep != sweep && e.missing.is_none() && e.is_packed() == packed;
        for entry in self.files.values_mut().filter(unseen) {
            if roots[entry.root].state == RootState::Readable && entry.still_there() == Some(false) {
                entry.missing = Some(Instant::now());
            }
        }
    }

    /// Lets go of what has been missing for long enough.
    fn confirm_missing(&mut self) {
        let over = |e: &Entry| e.missing.is_some_and(|at| at.elapsed() >= CONFIRM);
        let gone: Vec<_> = self.files.iter().filter(|(_, e)| over(e)).map(|(h, _)| *h).collect();
        for handle in gone {
            let Some(entry) = self.remove(handle) else { continue };
            if self.knows(&entry.name) {
                self.look.replaced.push(handle);
            } else {
                self.look.deleted.push((handle, entry.name.to_string()));
            }
        }
    }
}

/// Opens the file an entry is about. `NotFound` also where another file took its path.
fn open(entry: &mut Entry) -> io::Result<File> {
    let file = File::open(&entry.path)?;
    let stat = Stat::of(&file.metadata()?);
    if stat.id != entry.stat.id {
        return Err(io::ErrorKind::NotFound.into());
    }
    entry.stat = stat;
    Ok(file)
}

/// Reads from a plain file; `None` where it has to start again.
fn read_plain(
    entry: &mut Entry,
    buffer: &mut Vec<u8>,
    hash: &Hash,
    budget: u64,
    on_line: &mut dyn FnMut(Line<'_>) -> ControlFlow<()>,
) -> io::Result<Option<Slice>> {
    let file = open(entry)?;
    let before = entry.place.offset;
    if entry.stat.size < before || (before > 0 && head_of(&file, before, hash)? != Some(entry.head)) {
        return Ok(None);
    }
    if entry.stat.size < entry.place.searched {
        entry.place.searched = before;
    }
    if entry.stat.size == before {
        return Ok(Some(Slice::default()));
    }
    let read = read_lines(&file, &mut entry.place, buffer, budget, on_line)?;
    if entry.place.offset > before && before < HEAD as u64 {
        match head_of(&file, entry.place.offset, hash)? {
            Some(head) => entry.head = head,
            // Rewritten while it was read: whatever was handed out comes again, under the same ids.
            None => return Ok(None),
        }
    }
    Ok(Some(Slice { moved: false, more: read.more, too_long: read.too_long }))
}

/// Reads from a compressed file; `None` where it has to start again.
fn read_packed(
    entry: &mut Entry,
    hash: &Hash,
    budget: u64,
    on_line: &mut dyn FnMut(Line<'_>) -> ControlFlow<()>,
) -> io::Result<Option<Slice>> {
    if matches!(entry.form, Form::Packed { done: true, .. }) {
        return Ok(Some(Slice::default()));
    }
    let held = match &mut entry.form {
        Form::Packed { reader, .. } => reader.take(),
        Form::Plain => None,
    };
    let mut packed = match held {
        Some(packed) => packed,
        None => {
            let file = open(entry)?;
            match Packed::open(file, entry.place.offset, entry.head, hash)? {
                Some(packed) => Box::new(packed),
                None => return Ok(None),
            }
        }
    };
    let read = packed.read_lines(budget, on_line);
    entry.place = Place { offset: packed.offset, searched: packed.offset };
    entry.head = packed.head(hash);
    let more = read.as_ref().is_ok_and(|r| r.more);
    // A damaged one is at its end, too: it will not get better.
    entry.form = Form::Packed { reader: more.then_some(packed), done: !more };
    let read = read?;
    Ok(Some(Slice { moved: !more, more, too_long: read.too_long }))
}

fn is_packed(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(PACKED.as_bytes())
}

fn stream_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    Some(name.strip_suffix(PACKED).unwrap_or(&name).to_owned())
}
