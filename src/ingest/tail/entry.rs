//! One followed file: where reading stands, and reading on from there.

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Lane, Options, Slice};
use crate::ingest::packed::Packed;
use crate::ingest::read::{Line, Place, prints_of, read_lines, read_rest};
use crate::ingest::{Hash, Position, Prints, Stat};

/// A file that has not changed for this long may end with a line that will never have an end.
pub(super) const SETTLED: Duration = Duration::from_secs(5);

/// Plain files grow, compressed ones do not.
pub(super) enum Form {
    Plain,
    Packed { reader: Option<Box<Packed>>, done: bool },
}

/// A followed file.
pub(super) struct Entry {
    pub(super) name: Arc<str>,
    pub(super) path: PathBuf,
    pub(super) root: usize,
    pub(super) stat: Stat,
    pub(super) form: Form,
    pub(super) place: Place,
    pub(super) prints: Prints,
    pub(super) queued: Option<Lane>,
    /// When a change was seen last.
    pub(super) changed: Option<Instant>,
    pub(super) missing: Option<Instant>,
    /// Its last line has no end, and is to be looked at once more when the file has settled.
    pub(super) unfinished: bool,
    /// It was read to its end in this run. The first time does not wait for the file to settle: it may have lain
    /// there for years.
    pub(super) reached_end: bool,
    /// It could not be opened: worth another try at each sweep.
    pub(super) failed: bool,
    /// The sweep that saw it last.
    pub(super) sweep: u64,
}
// === impl Entry ===

impl Entry {
    pub(super) fn position(&self) -> Position {
        let done = matches!(self.form, Form::Packed { done: true, .. });
        Position { id: self.stat.id, offset: self.place.offset, prints: self.prints, done }
    }

    pub(super) fn is_packed(&self) -> bool {
        matches!(self.form, Form::Packed { .. })
    }

    /// Begins again at the file's head.
    pub(super) fn restart(&mut self) {
        self.place = Place::default();
        self.prints = Prints::default();
        (self.unfinished, self.reached_end) = (false, false);
        if let Form::Packed { reader, done } = &mut self.form {
            (*reader, *done) = (None, false);
        }
    }

    /// Whether it has been left alone for a while.
    pub(super) fn is_settled(&self) -> bool {
        self.changed.is_none_or(|at| at.elapsed() >= SETTLED)
    }

    /// Whether the file at `path` begins with what was read of this one, and something was.
    pub(super) fn is_continued_at(&self, path: &Path, hash: &Hash) -> bool {
        let offset = self.place.offset;
        let prints = open_plain(path).and_then(|(file, _)| prints_of(&file, offset, hash));
        offset > 0 && matches!(prints, Ok(Some(prints)) if prints == self.prints)
    }

    /// Whether the path still leads to the file. `None`: it cannot be told.
    pub(super) fn still_there(&self) -> Option<bool> {
        match fs::metadata(&self.path) {
            Ok(meta) => Some(meta.is_file() && Stat::of(&meta).id == self.stat.id),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Some(false),
            Err(_) => None,
        }
    }
}

/// Opens a plain file, and nothing else: whoever opens a pipe without a writer waits for one.
fn open_plain(path: &Path) -> io::Result<(File, Stat)> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let stat = Stat::of(&file.metadata()?);
    if !stat.is_file {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok((file, stat))
}

/// Opens the file an entry is about. `NotFound` also where another file took its path.
fn open(entry: &mut Entry) -> io::Result<File> {
    let (file, stat) = open_plain(&entry.path)?;
    if stat.id != entry.stat.id {
        return Err(io::ErrorKind::NotFound.into());
    }
    entry.stat = stat;
    Ok(file)
}

/// Reads from a plain file; `None` where it has to start again.
pub(super) fn read_plain(
    entry: &mut Entry,
    buffer: &mut Vec<u8>,
    options: &Options,
    budget: u64,
    on_line: &mut dyn FnMut(Line<'_>) -> ControlFlow<()>,
) -> io::Result<Option<Slice>> {
    let hash = &options.hash;
    let file = open(entry)?;
    let before = entry.place.offset;
    if entry.stat.size < before || (before > 0 && prints_of(&file, before, hash)? != Some(entry.prints)) {
        return Ok(None);
    }
    if entry.stat.size < entry.place.searched {
        entry.place.searched = before;
    }
    let mut slice = Slice::default();
    if entry.stat.size > before {
        let read = read_lines(&file, &mut entry.place, buffer, budget, on_line)?;
        (slice.more, slice.too_long) = (read.more, read.too_long);
    }
    if !slice.more {
        // What came after the size was asked for is the next look's.
        let has_rest = entry.place.offset < entry.stat.size;
        let now = has_rest && (!entry.reached_end || entry.is_settled());
        let taken =
            now && read_rest(&file, &mut entry.place, entry.stat.size, buffer, options.complete, on_line)?;
        entry.unfinished = has_rest && !taken && !entry.is_settled();
        entry.reached_end = true;
    }
    if entry.place.offset > before {
        match prints_of(&file, entry.place.offset, hash)? {
            Some(prints) => entry.prints = prints,
            // Rewritten while it was read: whatever was handed out comes again, under the same ids.
            None => return Ok(None),
        }
    }
    Ok(Some(slice))
}

/// Reads from a compressed file; `None` where it has to start again.
pub(super) fn read_packed(
    entry: &mut Entry,
    options: &Options,
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
            match Packed::open(file, entry.place.offset, entry.prints, &options.hash)? {
                Some(packed) => Box::new(packed),
                None => return Ok(None),
            }
        }
    };
    let read = packed.read_lines(budget, options.complete, on_line);
    entry.place = Place { offset: packed.offset, searched: packed.offset };
    entry.prints = packed.prints(&options.hash);
    let more = read.as_ref().is_ok_and(|r| r.more);
    // A damaged one is at its end, too: it will not get better.
    entry.form = Form::Packed { reader: more.then_some(packed), done: !more };
    let read = read?;
    Ok(Some(Slice { moved: !more, more, too_long: read.too_long }))
}
