//! One followed file: where reading stands, and reading on from there.

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::{Lane, Slice};
use crate::ingest::packed::Packed;
use crate::ingest::read::{HEAD, Line, Place, head_of, read_lines};
use crate::ingest::{Hash, Position, Stat};

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
    pub(super) head: u64,
    pub(super) queued: Option<Lane>,
    /// When a change was seen last.
    pub(super) changed: Option<Instant>,
    pub(super) missing: Option<Instant>,
    /// It could not be opened: worth another try at each sweep.
    pub(super) failed: bool,
    /// The sweep that saw it last.
    pub(super) sweep: u64,
}
// === impl Entry ===

impl Entry {
    pub(super) fn position(&self) -> Position {
        let done = matches!(self.form, Form::Packed { done: true, .. });
        Position { id: self.stat.id, offset: self.place.offset, head: self.head, done }
    }

    pub(super) fn is_packed(&self) -> bool {
        matches!(self.form, Form::Packed { .. })
    }

    /// Begins again at the file's head.
    pub(super) fn restart(&mut self) {
        self.place = Place::default();
        self.head = 0;
        if let Form::Packed { reader, done } = &mut self.form {
            (*reader, *done) = (None, false);
        }
    }

    /// Whether the path still leads to the file. `None`: it cannot be told.
    pub(super) fn still_there(&self) -> Option<bool> {
        match fs::metadata(&self.path) {
            Ok(meta) => Some(Stat::of(&meta).id == self.stat.id),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Some(false),
            Err(_) => None,
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
pub(super) fn read_plain(
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
pub(super) fn read_packed(
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
