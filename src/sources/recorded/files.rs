//! The files that an agent writes. A session's elders are read before it, so that what it copied of them is known to be
//! theirs: see `super::super::files::owners`.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::files::objects::{Piece, pieces};
use super::super::files::{FileSource, Opening, Owners, PEEK};
use super::{Played, Setting, Unplayable, dated};
use crate::event::{Event, SessionId, SourceId, Timestamp};
use crate::ingest::whole::{WholeLine, each_line, head};
use crate::sources::{Decode, DecodeError, Record};

/// A file on its way through the decoder.
struct Reading<'a> {
    files: &'a FileSource,
    source: &'a SourceId,
    path: &'a Path,
    setting: &'a Setting,
    owners: &'a Arc<Owners>,
}

pub(super) fn play(
    files: &FileSource,
    source: &SourceId,
    paths: &[PathBuf],
    setting: &Setting,
    played: &mut Played,
) -> Result<(), Unplayable> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |why| Unplayable { path, why }
    };
    // Who is whose elder, and when each file begins, is only known once all of them were read.
    let unsettled = Arc::new(Owners::default());
    let mut order = Vec::new();
    for path in paths {
        let reading = Reading { files, source, path, setting, owners: &unsettled };
        let mut first: Option<Timestamp> = None;
        let session = reading
            .each(Timestamp::default(), &mut Played::default(), |events| {
                first = events.iter().filter_map(dated).chain(first).min();
            })
            .map_err(failed(path))?;
        let elder = session.as_ref().and_then(|s| unsettled.elder_by(s));
        order.push((elder, first.unwrap_or_default(), session, path));
    }
    order.sort();
    let owners = Arc::new(Owners::default());
    for (_, first, _, path) in order {
        let reading = Reading { files, source, path, setting, owners: &owners };
        let mut lines = Vec::new();
        reading.each(first, played, |events| lines.push(std::mem::take(events))).map_err(failed(path))?;
        played.place(lines);
    }
    Ok(())
}

// === impl Reading ===

impl Reading<'_> {
    /// Decodes the whole file, which begins at `at`; `each` takes what a line gave away. Gives the session it is about.
    fn each(
        &self,
        mut at: Timestamp,
        played: &mut Played,
        mut each: impl FnMut(&mut Vec<Event>),
    ) -> io::Result<Option<SessionId>> {
        let head = if self.files.peeks { head(self.path, PEEK)? } else { Vec::new() };
        let stream = (self.files.stream)(self.path);
        let name = stream.and_then(|stream| (self.files.stream_id)(OsStr::new(&stream)));
        let mut decoder = (self.files.new)(&Opening {
            source: self.source.clone(),
            reducer: self.setting.reducer.clone(),
            name: name.as_deref(),
            owners: self.owners.clone(),
            head: &head,
        });
        let mut events = Vec::new();
        each_line(self.path, |line| {
            let WholeLine::Text(line) = line else { return played.refuse("too_long") };
            played.records += 1;
            take(decoder.as_mut(), line, at, played, &mut events);
            for kind in decoder.unknown_kinds() {
                played.unknown(kind);
            }
            at = events.iter().filter_map(dated).fold(at, Timestamp::max);
            each(&mut events);
            events.clear();
        })?;
        Ok(decoder.session().cloned())
    }
}

/// One line, as the runner of files takes it: one that is no record may hold some.
fn take(
    decoder: &mut dyn Decode,
    line: &[u8],
    observed: Timestamp,
    played: &mut Played,
    out: &mut Vec<Event>,
) {
    let before = out.len();
    match decoder.decode(&Record { bytes: line, observed }, out) {
        Ok(()) => {}
        Err(DecodeError::Json) if out.len() == before => pieces(line, &mut |piece| {
            let decoded = match piece {
                Piece::Object(bytes) if *bytes != *line => {
                    decoder.decode(&Record { bytes: &bytes, observed }, out)
                }
                _ => Err(DecodeError::Json),
            };
            if let Err(error) = decoded {
                played.refuse(error.as_str());
            }
        }),
        Err(error) => played.refuse(error.as_str()),
    }
}
