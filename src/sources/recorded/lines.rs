//! Files of lines: in a form of the source's own that has times, or with a time beside each record:
//!
//! ```json
//! {"t": 1764500000000, "record": {"any": "JSON"}}
//! {"t": "2026-11-30T10:00:01Z", "record": "or text"}
//! ```

use std::io;
use std::path::Path;

use super::{Lines, Played, bytes_of, dated, each_stamped};
use crate::event::{Event, Timestamp};
use crate::ingest::whole::{WholeLine, each_line};

/// Longest time between two lines in which something may be concluded each second.
const MAX_PASS_MS: i64 = 3_600_000;
/// What the silence behind the last line means is concluded in this time.
pub(super) const SILENCE_MS: i64 = 60_000;

/// Lines that have times of their own. What has none happened with the last thing that has.
pub(super) fn play_own(lines: &mut dyn Lines, path: &Path, played: &mut Played) -> io::Result<()> {
    let mut told: Vec<Event> = Vec::new();
    each_line(path, |line| {
        let WholeLine::Text(line) = line else { return played.refuse("too_long") };
        played.records += 1;
        if let Err(reason) = lines.take(line, Timestamp::default(), &mut told) {
            played.refuse(reason);
        }
    })?;
    // Whoever wrote them may have written one session behind the other: each was there to be read when it says.
    let Some(mut at) = told.iter().find_map(dated) else {
        if !told.is_empty() {
            played.undated();
        }
        return Ok(());
    };
    for event in told {
        at = dated(&event).unwrap_or(at);
        played.take_at(at, event);
    }
    Ok(())
}

/// Records with their times beside them.
pub(super) fn play_stamped(lines: &mut dyn Lines, path: &Path, played: &mut Played) -> io::Result<()> {
    let mut now: Option<Timestamp> = None;
    let mut out = Vec::new();
    each_stamped(path, played, |at, stamp, played| {
        // A clock that was set back does not make the past again.
        let at = now.map_or(at, |now| now.max(at));
        each_second(now, at, |second| {
            lines.pass(second, &mut out);
            played.take(second, out.drain(..));
        });
        now = Some(at);
        match stamp.record.map(bytes_of) {
            Some(bytes) => {
                if let Err(reason) = lines.take(&bytes, at, &mut out) {
                    played.refuse(reason);
                }
            }
            None => played.refuse("no_record"),
        }
        played.take(at, out.drain(..));
    })?;
    if let Some(end) = now {
        each_second(now, end.plus(SILENCE_MS), |second| {
            lines.pass(second, &mut out);
            played.take(second, out.drain(..));
        });
    }
    Ok(())
}

/// Full seconds of the clock between two moments, at most an hour of them: lines that come faster do not stop time.
pub(super) fn each_second(from: Option<Timestamp>, to: Timestamp, mut each: impl FnMut(Timestamp)) {
    let Some(from) = from else { return };
    let mut second = from.plus(1_000 - from.as_millis().rem_euclid(1_000));
    while second < to && second.since(from) <= MAX_PASS_MS {
        each(second);
        second = second.plus(1_000);
    }
}
