//! Lines of the generic schema in a file: as they would be pushed.

use std::sync::Arc;

use super::{Admission, Decoder, Options};
use crate::event::Event;
use crate::event::Timestamp;
use crate::sources::recorded::Lines;
use crate::sources::recorded::Take;

/// Items of one file, CloudEvents among them.
pub(super) struct Recorded(Decoder);

/// Begins a file.
pub(super) fn lines(take: &Take<'_>) -> Box<dyn Lines> {
    let options = Options { allow_builtin: take.setting.allow_builtin, ..Options::default() };
    let (reducer, telemetry) = (take.setting.reducer.clone(), take.setting.telemetry.clone());
    Box::new(Recorded(Decoder::new(reducer, telemetry, Arc::new(Admission::default()), &options)))
}

// === impl Recorded ===

impl Lines for Recorded {
    fn take(&mut self, record: &[u8], at: Timestamp, out: &mut Vec<Event>) -> Result<(), &'static str> {
        // An item of our own schema has no such key; a CloudEvent has to have it.
        let decoded = match memchr::memmem::find(record, b"\"specversion\"") {
            Some(_) => self.0.cloud_event(record, at).or_else(|_| self.0.item(record, at)),
            None => self.0.item(record, at),
        };
        out.push(decoded.map_err(|reason| reason.as_str())?);
        Ok(())
    }
}
