//! Contents of a status file, as they were found there one after the other. The file is called by the orchestration.

use super::lifecycle::Times;
use super::status::{Rewrite, Status};
use crate::event::{Event, Name, SessionId, Timestamp};
use crate::sources::recorded::{Lines, Take};

/// The rewrites of one status file.
pub(super) struct Recorded(Status);

/// Begins a file.
pub(super) fn lines(take: &Take<'_>) -> Box<dyn Lines> {
    let name = take.setting.reducer.project_of(take.name).unwrap_or_else(|| super::DEF.name.to_owned());
    let (session, project) = (SessionId::from(name.as_str()), Name::from(name.as_str()));
    Box::new(Recorded(Status::new(take.source.clone(), session, project, take.setting.reducer.clone())))
}

// === impl Recorded ===

impl Lines for Recorded {
    fn take(&mut self, record: &[u8], at: Timestamp, out: &mut Vec<Event>) -> Result<(), &'static str> {
        let rewrite = Rewrite { bytes: record, mtime: at, observed: at };
        // Files beside it were not recorded, and those of today say nothing of then.
        self.0.decode(&rewrite, &mut Times::default(), out).map_err(|error| error.as_str())
    }

    fn pass(&mut self, now: Timestamp, out: &mut Vec<Event>) {
        self.0.left_alone(now, out);
    }
}
