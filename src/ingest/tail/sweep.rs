//! Looking around: which files there are, which changed, which went. Nothing is opened here.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::{Entry, Form};
use super::{Handle, RECENT, Tail};
use crate::ingest::discover::{RootState, Visit, walk};
use crate::ingest::read::Place;
use crate::ingest::watch::{Polled, Watch};
use crate::ingest::{FileId, Prints, Stat};

/// Time between two looks at files that changed lately; where the kernel tells nothing, this is what finds growth.
const RECENT_EVERY: Duration = Duration::from_secs(1);
const RECENT_EVERY_POLLING: Duration = Duration::from_millis(200);
/// Time between two sweeps over everything.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const SWEEP_EVERY_POLLING: Duration = Duration::from_secs(1);
/// Looking around may take one part in this many of the time; more where there is nothing but looking, and more for
/// a sweep that something called for.
const SHARE: u32 = 400;
const SHARE_POLLING: u32 = 50;
const SHARE_HASTY: u32 = 10;
/// A file must be missing for this long before it counts as gone: it may be on its way to another folder, which
/// was listed before it arrived there.
const CONFIRM: Duration = Duration::from_millis(250);
/// The second sweep comes soon: what is in neither of the first two is not there.
const SECOND_SWEEP: Duration = Duration::from_secs(1);
/// Extension of compressed files.
const PACKED: &str = ".zst";

/// What one walk found.
struct Walk<'a> {
    accepts: fn(&OsStr) -> bool,
    watch: &'a mut Watch,
    polled: Option<Polled>,
    files: Vec<(PathBuf, Stat)>,
    unreadable: Vec<PathBuf>,
}

// === impl Walk ===

impl Visit for Walk<'_> {
    fn accepts(&self, name: &OsStr) -> bool {
        (self.accepts)(name)
    }

    fn folder(&mut self, path: &Path, id: FileId) {
        self.polled = self.polled.or(self.watch.folder(path, id));
    }

    fn file(&mut self, path: PathBuf, stat: Stat) {
        self.files.push((path, stat));
    }

    fn unreadable(&mut self, path: &Path) {
        self.unreadable.push(path.to_owned());
    }
}
// === impl Tail: looking around ===

impl Tail {
    /// Looks at one path the kernel named.
    pub(super) fn touch(&mut self, path: &Path, removed: bool, now_ms: i64) {
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
                let mut plain: Vec<_> = found.into_iter().filter(|(p, _)| !is_packed(p)).collect();
                plain.sort_by_key(|(_, stat)| Reverse(stat.mtime_ms));
                for (path, stat) in plain {
                    self.observe(path, stat, root, now_ms);
                }
            }
            // Which of two twins counts is seen only when both are.
            Ok(meta) if accepted && meta.is_file() && is_packed(path) => self.sweep_soon(Duration::ZERO),
            Ok(meta) if accepted && meta.is_file() => {
                self.observe(path.to_owned(), Stat::of(&meta), root, now_ms)
            }
            // Something else has taken the place of a file.
            Ok(_) if accepted && removed => self.sweep_soon(Duration::ZERO),
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
            polled: None,
            files: Vec::new(),
            unreadable: Vec::new(),
        };
        let state = walk(from, &mut walked);
        let Walk { polled, files, unreadable, .. } = walked;
        let before = self.roots[root].polled.filter(|_| from != self.options.roots[root]);
        self.roots[root].polled = before.or(polled);
        for path in unreadable {
            self.cannot_read(&path);
        }
        (state, files)
    }

    /// Takes in what is known about a plain file now.
    fn observe(&mut self, path: PathBuf, stat: Stat, root: usize, now_ms: i64) {
        let Some(name) = self.stream_of(&path) else { return };
        let known = self.by_id.get(&stat.id).copied().and_then(|h| Some((h, self.files.get_mut(&h)?)));
        if let Some((handle, entry)) = known {
            // Two paths to one file: the first one stays, as long as it is one.
            let other_path = entry.path != path && entry.still_there() == Some(true);
            if !entry.is_packed() && (other_path || *entry.name == *name) {
                let (path, root) = if other_path { (entry.path.clone(), entry.root) } else { (path, root) };
                let grew = entry.stat.size != stat.size;
                let changed = grew || entry.stat.mtime_ms != stat.mtime_ms;
                let worth_reading = changed || entry.failed || entry.path != path;
                entry.sweep = self.sweeps;
                (entry.path, entry.root, entry.stat) = (path, root, stat);
                (entry.missing, entry.failed) = (None, false);
                if changed {
                    entry.changed = Some(Instant::now());
                }
                if worth_reading {
                    self.enqueue(handle, now_ms, grew);
                }
                return;
            }
            if other_path {
                entry.sweep = self.sweeps;
                return;
            }
            if !entry.is_packed() && entry.is_continued_at(&path, &self.options.hash) {
                // The same file under the name of another stream: nothing was deleted.
                if let Some(entry) = self.remove(handle) {
                    if self.knows(&entry.name) {
                        self.look.replaced.push(handle);
                    } else {
                        self.look.renamed.push((handle, entry.name.to_string()));
                    }
                }
            } else {
                // The inode serves another file by now.
                self.by_id.remove(&stat.id);
                entry.missing.get_or_insert_with(Instant::now);
                self.sweep_soon(CONFIRM);
            }
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
            prints: Prints::default(),
            queued: None,
            changed: recent.then(Instant::now),
            missing: None,
            unfinished: false,
            reached_end: false,
            failed: false,
            sweep: self.sweeps,
        };
        self.files.insert(handle, entry);
        self.enqueue(handle, now_ms, false);
    }

    /// The stream a file belongs to.
    fn stream_of(&self, path: &Path) -> Option<String> {
        let plain = path.as_os_str().to_string_lossy();
        let plain = plain.strip_suffix(PACKED).unwrap_or(&plain);
        (self.options.stream)(Path::new(plain))
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
    pub(super) fn check_recent(&mut self, now_ms: i64) {
        let began = Instant::now();
        let recent = self.files.values().filter(|e| e.changed.is_some_and(|at| at.elapsed() < RECENT));
        let looked: Vec<_> = recent.map(|e| (e.path.clone(), e.root, fs::metadata(&e.path))).collect();
        for (path, root, meta) in looked {
            match meta {
                Ok(meta) if !meta.is_file() => self.sweep_soon(Duration::ZERO),
                Ok(meta) if !is_packed(&path) => self.observe(path, Stat::of(&meta), root, now_ms),
                Ok(_) => {}
                Err(_) => self.sweep_soon(Duration::ZERO),
            }
        }
        let settled = self.files.iter().filter(|(_, e)| e.unfinished && e.is_settled());
        for handle in settled.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            self.enqueue(handle, now_ms, true);
        }
        self.next_recent = self.pause(began.elapsed(), RECENT_EVERY, RECENT_EVERY_POLLING);
    }

    /// When to look again, after a look that took `spent`.
    fn pause(&self, spent: Duration, every: Duration, polling: Duration) -> Instant {
        let (every, share) =
            if self.watched_roots().1 > 0 { (polling, SHARE_POLLING) } else { (every, SHARE) };
        Instant::now() + every.max(spent * share)
    }

    /// Looks at everything below the roots.
    pub(super) fn sweep(&mut self, now_ms: i64) {
        let began = Instant::now();
        self.sweeps += 1;
        self.watch.revive();
        let (mut plain, mut packed) = (Vec::new(), Vec::new());
        for root in 0..self.roots.len() {
            let path = self.options.roots[root].clone();
            let (state, files) = self.walk(root, &path);
            self.roots[root].state = state;
            if state == RootState::Missing {
                self.await_root(&path);
            }
            for (path, stat) in files {
                let files = if is_packed(&path) { &mut packed } else { &mut plain };
                files.push((path, stat, root));
            }
        }
        // The newest of all roots come first.
        for files in [&mut plain, &mut packed] {
            files.sort_by_key(|(_, stat, _): &(_, Stat, _)| Reverse(stat.mtime_ms));
        }
        for (path, stat, root) in plain {
            self.observe(path, stat, root, now_ms);
        }
        self.miss(false);
        for (path, stat, root) in packed {
            self.observe_packed(path, stat, root, now_ms);
        }
        self.miss(true);
        self.confirm_missing();

        let spent = began.elapsed();
        self.earliest_sweep = Instant::now() + spent * SHARE_HASTY;
        self.next_sweep = self.pause(spent, SWEEP_EVERY, SWEEP_EVERY_POLLING);
        if self.files.values().any(|e| e.missing.is_some()) {
            self.sweep_soon(CONFIRM);
        }
        if self.sweeps == 1 {
            self.sweep_soon(SECOND_SWEEP);
        }
        self.tell_polled();
        self.look.swept = true;
    }

    /// Tells which roots have to be polled, each once until it has recovered.
    fn tell_polled(&mut self) {
        for (i, root) in self.roots.iter_mut().enumerate() {
            let polled = root.polled.filter(|_| root.state != RootState::Missing);
            // Who asked for it knows.
            if polled == Some(Polled::Asked) || polled.is_some() == root.told {
                continue;
            }
            root.told = polled.is_some();
            self.look.polled.push((i, polled));
        }
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
        let Some(name) = self.stream_of(&path) else { return };
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
            self.enqueue(handle, now_ms, false);
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

fn is_packed(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(PACKED.as_bytes())
}
