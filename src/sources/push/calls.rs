//! The lines a pushed read asks for.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::refuse::Reason;
use crate::event::ReadRange;

/// The lines a read asks for; a range that is none is dropped.
pub(super) fn read_range(raw: Option<&RawValue>) -> Result<Option<ReadRange>, Reason> {
    #[derive(Deserialize)]
    struct Wire {
        start: f64,
        end: f64,
        total: Option<f64>,
    }
    let Some(raw) = raw else { return Ok(None) };
    if !raw.get().starts_with('{') {
        return Err(Reason::BadValue);
    }
    let wire: Wire = serde_json::from_str(raw.get()).map_err(|_| Reason::BadValue)?;
    let range = ReadRange {
        start: wire.start as u32,
        end: wire.end as u32,
        total: wire.total.filter(|t| *t >= 0.0).map(|t| t as u32),
    };
    Ok(Some(range).filter(|r| wire.start >= 1.0 && r.end >= r.start))
}
