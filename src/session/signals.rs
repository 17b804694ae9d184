//! The loop signals: what the calls since the last landing or person's prompt look like, without any threshold. They
//! are about a root with its sub-agents: the calls of all of them, by start.
//!
//! *S* are the calls since then, *N* the last sixty of them. [`log`] keeps S per session, [`mod@walk`] goes through it,
//! `lines` remembers which lines of a file were read. A call inside another (a script that runs commands) stands in
//! S; the script it belongs to does not, so that nothing is counted twice. Whoever runs no script sees no difference.
//!
//! A call brings *something new* if
//! - it is a read, and more than one in twenty of the lines it asks for were not read before in S; a read of a whole
//!   file covers every later one. A read that failed read nothing: it is told by its key alone;
//! - it is another call, and its key is new in S, or its output differs from the last one with that key, or it is a
//!   paced repeat: a shell command, wait or poll that did not fail, half a minute or more after the last with its key.
//!
//! All of it is a function of the calls by start and of what is known of their ends: a call in flight counts, and its
//! end may change what it and later ones are worth.

mod lines;
pub mod log;
pub mod walk;

pub use self::log::CallLog;
pub use self::walk::Walk;
use crate::event::Timestamp;

/// Calls of a tree that are gone through; older ones are only counted.
const MAX_TREE_CALLS: usize = 4096;

/// What the calls since the last landing or person's prompt look like.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Signals {
    /// Size of S.
    pub calls_since_progress: u32,
    /// Size of N.
    pub window_calls: u32,
    /// Calls of N that bring nothing new.
    pub nothing_new: u32,
    /// Trailing run of one error in S.
    pub error_streak: u32,
    /// Most calls with one key in S that brought nothing new.
    pub repeated_call_max: u32,
    /// Most lines read of one file in N, as a share of its length; `None` where no length is known.
    pub read_coverage: Option<f32>,
    /// Different keys in N.
    pub distinct_keys: u32,
    /// Most calls on one target in N.
    pub top_target_calls: u32,
    /// Trailing run of one key in N.
    pub call_streak: u32,
    /// Most repetitions of a cycle of one to five calls at the end of N.
    pub cycle_repeats: u32,
}

// === impl Signals ===

impl Signals {
    /// Share of N that brings nothing new; 0 where there is no call.
    pub fn no_new_ratio(&self) -> f64 {
        share(self.nothing_new, self.window_calls)
    }

    /// Share of N that repeats a key of N; 0 where there is no call.
    pub fn repeat_ratio(&self) -> f64 {
        share(self.window_calls - self.distinct_keys, self.window_calls)
    }

    /// Lines read of the file that was read most often, as a share of its length, in thousandths.
    pub fn read_coverage_ratio(&self) -> Option<f64> {
        self.read_coverage.map(|ratio| (f64::from(ratio) * 1000.0).round() / 1000.0)
    }
}

fn share(part: u32, whole: u32) -> f64 {
    if whole == 0 { 0.0 } else { f64::from(part) / f64::from(whole) }
}

/// The signals of a tree whose sessions have these logs, the root's first. `cleared`: when the tree last landed or a
/// person last prompted its root.
pub fn of(logs: &[&CallLog], cleared: Option<Timestamp>) -> Signals {
    let mut own = logs.iter().filter(|log| log.reaches_behind(cleared));
    match (own.next(), own.next()) {
        (None, _) => Signals::default(),
        (Some(log), None) if log.is_all_behind(cleared) => log.signals(),
        _ => walk(logs, cleared).signals(),
    }
}

/// Goes through the calls of a tree, as [`of`] does.
pub fn walk(logs: &[&CallLog], cleared: Option<Timestamp>) -> Walk {
    let mut walk = Walk::default();
    let mut calls: Vec<&log::Call> = Vec::new();
    for log in logs {
        if let Some(before) = log.before(cleared) {
            walk.join(before);
        }
        calls.extend(log.calls(cleared));
    }
    if logs.len() > 1 {
        // Stable: calls of one moment stand in the order of their sessions.
        calls.sort_by_key(|call| call.start);
    }
    let (counted, rest) = calls.split_at(calls.len().saturating_sub(MAX_TREE_CALLS));
    for call in counted {
        walk.count(call);
    }
    for call in rest {
        walk.step(call);
    }
    walk
}
