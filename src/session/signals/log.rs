//! The calls of one session since its last landing or person's prompt, in 48 bytes each. Beyond a bound the older half
//! becomes the [`Walk`] through it, from which the walk through the rest begins.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::{Signals, Walk};
use crate::event::reduce::stable_hash;
use crate::event::{CallEnd, CallOutcome, CallStart, Id, ReadRange, Timestamp, ToolClass};

/// Calls that are kept one by one.
pub const MAX_CALLS: usize = 256;
/// Room is made for so many at a time: most sessions have few, and thousands are kept.
const STEP: usize = 16;

/// Calls since the last landing or person's prompt; nothing is allocated while there are none. Copies share what they
/// hold until one changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallLog(Option<Arc<Kept>>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// By start.
    calls: Vec<Call>,
    /// The calls before these.
    before: Option<Box<Walk>>,
    /// What all of it is worth, until it changes.
    #[serde(skip)]
    signals: OnceLock<Signals>,
}

/// One call. Hashes are cut to 32 bits: they tell a few hundred calls of one session apart. 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// When it began; without a time, right behind the newest record.
    pub(super) start: Timestamp,
    call: u32,
    pub(super) key: u32,
    pub(super) tool: u32,
    pub(super) target: u32,
    pub(super) output: u32,
    /// The fingerprint of its error; it failed if there is one.
    pub(super) error: u32,
    /// First and last line of a read, and the length of the file.
    pub(super) lines: [u32; 3],
    pub(super) class: ToolClass,
    flags: u8,
}

/// It has no time of its own.
const UNTIMED: u8 = 1;
/// It is over.
const ENDED: u8 = 2;
/// It was interrupted: neither failed nor succeeded.
const CUT: u8 = 4;
/// It runs other calls, which stand for it.
const SCRIPT: u8 = 8;

// === impl CallLog ===

impl CallLog {
    /// A call begins. `newest`: the time of the newest record so far.
    pub fn begin(&mut self, start: &CallStart, time: Option<Timestamp>, newest: Option<Timestamp>) {
        let call = Call::new(start, time, newest);
        let kept = self.change();
        let at = kept.calls.partition_point(|c| c.start <= call.start);
        if kept.calls.len() == kept.calls.capacity() {
            kept.calls.reserve_exact(STEP);
        }
        kept.calls.insert(at, call);
        if kept.calls.len() > MAX_CALLS {
            let before = kept.before.get_or_insert_default();
            for call in kept.calls.drain(..MAX_CALLS / 2).filter(|c| c.counts()) {
                before.step(&call);
            }
            before.trim();
        }
    }

    /// A call ends; one that is not among them changes nothing.
    pub fn end(&mut self, end: &CallEnd) {
        let Some(at) = self.position(&end.call) else { return };
        self.change().calls[at].end(end);
    }

    /// A call turns out to run others.
    pub fn is_script(&mut self, call: &Id) {
        let Some(at) = self.position(call) else { return };
        self.change().calls[at].flags |= SCRIPT;
    }

    /// Forgets what is not younger than a landing or prompt; without a time it is taken to be the newest there is.
    pub fn clear_until(&mut self, cleared: Option<Timestamp>) {
        let Some(kept) = &self.0 else { return };
        let stays = |call: &Call| call.flags & UNTIMED == 0 && cleared.is_some_and(|at| call.start > at);
        let before_stays = kept.before.as_ref().is_some_and(|b| cleared.is_some() && b.first > cleared);
        if !before_stays && !kept.calls.iter().any(stays) {
            self.0 = None;
        } else if !kept.calls.iter().all(stays) || (kept.before.is_some() && !before_stays) {
            let kept = self.change();
            kept.calls.retain(stays);
            kept.calls.shrink_to_fit();
            kept.before.take_if(|_| !before_stays);
        }
    }

    /// How many calls younger than a landing elsewhere in the tree there are.
    pub fn count(&self, cleared: Option<Timestamp>) -> u64 {
        let before = self.before(cleared).map_or(0, |before| u64::from(before.calls));
        self.calls(cleared).count() as u64 + before
    }

    /// What all of it is worth.
    pub fn signals(&self) -> Signals {
        let Some(kept) = &self.0 else { return Signals::default() };
        *kept.signals.get_or_init(|| super::walk(&[self], None).signals())
    }

    /// Whether some of it is younger than a landing elsewhere in the tree.
    pub(super) fn reaches_behind(&self, cleared: Option<Timestamp>) -> bool {
        self.0.as_ref().is_some_and(|kept| kept.calls.last().map(|c| c.start) > cleared)
            || self.before(cleared).is_some()
    }

    /// Whether all of it is.
    pub fn is_all_behind(&self, cleared: Option<Timestamp>) -> bool {
        let Some(kept) = &self.0 else { return true };
        kept.calls.first().is_none_or(|c| Some(c.start) > cleared)
            && kept.before.as_ref().is_none_or(|before| before.first > cleared)
    }

    /// The calls that are kept one by one, by start.
    pub(super) fn calls(&self, cleared: Option<Timestamp>) -> impl Iterator<Item = &Call> {
        let kept = self.0.as_ref().map_or(&[][..], |kept| &kept.calls);
        let old = kept.partition_point(|c| Some(c.start) <= cleared);
        kept[old..].iter().filter(|c| c.counts())
    }

    /// What is known of the calls before. A landing among them is taken to be after all of them.
    pub(super) fn before(&self, cleared: Option<Timestamp>) -> Option<&Walk> {
        self.0.as_ref()?.before.as_deref().filter(|before| before.first > cleared)
    }

    fn position(&self, call: &Id) -> Option<usize> {
        let hash = cut(stable_hash(call));
        self.0.as_ref()?.calls.iter().rposition(|c| c.call == hash)
    }

    fn change(&mut self) -> &mut Kept {
        let kept = Arc::make_mut(self.0.get_or_insert_default());
        kept.signals.take();
        kept
    }
}

// === impl Kept ===

impl Clone for Kept {
    /// Copies are made to be changed.
    fn clone(&self) -> Self {
        let mut calls = Vec::with_capacity(self.calls.len().next_multiple_of(STEP));
        calls.extend_from_slice(&self.calls);
        Self { calls, before: self.before.clone(), signals: OnceLock::new() }
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        self.calls == other.calls && self.before == other.before
    }
}

// === impl Call ===

impl Call {
    fn new(start: &CallStart, time: Option<Timestamp>, newest: Option<Timestamp>) -> Self {
        let call = cut(stable_hash(&start.call));
        let tool = cut(stable_hash(&start.tool));
        let target = start.target.map_or(0, cut);
        let like =
            |target: u64| cut(stable_hash((&start.tool, target, start.read.map(|r| (r.start, r.end)))));
        // What a source says neither arguments nor target of repeats nothing, as far as anybody knows.
        let key = start.key.map(cut).or(start.target.map(like)).unwrap_or(call);
        let behind = newest.map_or(Timestamp::from_millis(i64::MIN), |newest| newest.plus(1));
        Self {
            start: time.unwrap_or(behind),
            call,
            key,
            tool,
            target,
            output: 0,
            error: 0,
            lines: start.read.map_or([0; 3], lines),
            class: start.class,
            flags: if time.is_none() { UNTIMED } else { 0 },
        }
    }

    fn end(&mut self, end: &CallEnd) {
        self.flags |= ENDED;
        self.output = end.output.map_or(0, cut);
        self.lines = end.read.map_or(self.lines, lines);
        // Without a text, that a tool fails in one way is all that is known of its error.
        let failed_as = |word: &str| match end.error {
            Some(text) => cut(stable_hash((self.tool, text))),
            None => cut(stable_hash((self.tool, word))),
        };
        self.error = match end.outcome {
            CallOutcome::Interrupted => {
                self.flags |= CUT;
                0
            }
            CallOutcome::Denied => failed_as("denied"),
            CallOutcome::Error => failed_as("exit"),
            CallOutcome::Ok | CallOutcome::Unknown if end.exit_code.is_some_and(|code| code != 0) => {
                failed_as("exit")
            }
            CallOutcome::Ok | CallOutcome::Unknown => 0,
        };
    }

    /// Whether it stands in S itself.
    fn counts(&self) -> bool {
        self.flags & SCRIPT == 0
    }

    /// Whether it is a read of something that can be told from others.
    pub(super) fn is_read(&self) -> bool {
        self.class == ToolClass::Read && self.target != 0
    }

    pub(super) fn failed(&self) -> bool {
        self.error != 0
    }

    /// Whether it came to its end without failing.
    pub(super) fn succeeded(&self) -> bool {
        self.flags & (ENDED | CUT) == ENDED && !self.failed()
    }

    /// Whether it was interrupted.
    pub(super) fn was_cut(&self) -> bool {
        self.flags & CUT != 0
    }

    /// Whether its start is a time that a source told.
    pub(super) fn has_time(&self) -> bool {
        self.flags & UNTIMED == 0
    }
}

/// The upper half of a hash, which is never 0.
fn cut(hash: u64) -> u32 {
    u32::try_from(hash >> 32).unwrap_or(u32::MAX).max(1)
}

fn lines(range: ReadRange) -> [u32; 3] {
    [range.start.max(1), range.end, range.total.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_takes_48_bytes_and_an_empty_log_8() {
        assert_eq!(size_of::<Call>(), 48);
        assert_eq!(size_of::<CallLog>(), 8);
    }
}
