//! Whether the process a registry entry names still lives, asked of `/proc` and of `kill(pid, 0)`. Three answers: what
//! cannot be checked is not dead (design section 3, rule 3).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::event::Timestamp;

/// Name of the first process id namespace of a machine, whose number is fixed in the kernel (`PROC_PID_INIT_INO`).
const INITIAL_NAMESPACE: &str = "pid:[4026531836]";
/// Length of a tick of `/proc/<pid>/stat`: `USER_HZ` is 100 on every Linux.
const TICK_MS: u64 = 10;
/// A process says of itself that it started at most this long after the kernel does.
const START_SLACK_MS: u64 = 5 * 60_000;
/// Clocks of a booting machine are set a little late; an entry has to be this much older than the boot.
const BOOT_SLACK_MS: i64 = 60_000;

/// What `kill(pid, 0)` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existence {
    /// There is such a process, ours or (`EPERM`) somebody else's.
    There,
    /// There is none (`ESRCH`), as far as our namespace of process ids sees.
    Absent,
    /// The kernel does not say.
    CannotTell,
}

/// Where to ask.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The kernel's folder of processes.
    pub proc: PathBuf,
    /// Asks whether a process exists.
    pub exists: fn(i32) -> Existence,
}

/// What an entry says of its process, and what was seen of it before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    pub(super) pid: i32,
    /// Start in clock ticks since boot.
    pub(super) start: Option<u64>,
    /// The same by the agent's own clock.
    pub(super) started: Option<Timestamp>,
    /// `linux:<boot id>:pid:[<number>]`
    pub(super) domain: Option<&'a str>,
    /// It was seen alive with this start time, so its namespace is ours.
    pub(super) seen_alive: bool,
    /// When the entry was last rewritten.
    pub(super) last_word: Timestamp,
}

/// The answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Liveness {
    /// It lives. `matched`: proven by its start time, not by its number alone.
    Alive { matched: bool },
    /// It is over.
    Gone,
    /// Nobody can say from here.
    #[default]
    CannotCheck,
}

/// What stands at a process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The process that is meant.
    Same,
    /// Another one, or one that only waits to be collected by its parent.
    Other,
    /// Something that cannot be compared, because another user's processes are hidden.
    Hidden,
    Absent,
    CannotTell,
}

/// Whether process ids of an entry mean what they mean here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Domain {
    Ours,
    Foreign,
    Unknown,
}

// === impl Probe ===

impl Default for Probe {
    fn default() -> Self {
        Self { proc: "/proc".into(), exists }
    }
}

impl Probe {
    /// Asks about one entry's process.
    pub(super) fn check(&self, claim: &Claim<'_>, now: Timestamp) -> Liveness {
        let domain = self.domain(claim.domain);
        match self.find(claim, now) {
            // The same number with the same start time in another namespace does not happen; on another machine or
            // after a boot it may.
            Found::Same if domain != Domain::Foreign || claim.seen_alive => Liveness::Alive { matched: true },
            Found::Hidden if domain != Domain::Foreign => Liveness::Alive { matched: false },
            Found::Absent | Found::Other
                if domain == Domain::Ours || claim.seen_alive || self.is_from_before_boot(claim, now) =>
            {
                Liveness::Gone
            }
            _ => Liveness::CannotCheck,
        }
    }

    /// When this machine was started, as far as it says so.
    pub(super) fn boot(&self, now: Timestamp) -> Option<Timestamp> {
        let text = fs::read_to_string(self.proc.join("uptime")).ok()?;
        let seconds: f64 = text.split_ascii_whitespace().next()?.parse().ok()?;
        let up = (seconds.is_finite() && seconds >= 0.0).then_some((seconds * 1000.0) as i64)?;
        Some(now.plus(up.saturating_neg()))
    }

    fn find(&self, claim: &Claim<'_>, now: Timestamp) -> Found {
        let stat = fs::read(self.proc.join(claim.pid.to_string()).join("stat"));
        match (stat.ok().as_deref().and_then(parse_stat), claim.start) {
            (Some((b'Z' | b'X' | b'x', _)), _) => Found::Other,
            (Some((_, start)), Some(claimed)) if start == claimed => Found::Same,
            (Some(_), Some(claimed)) if claim.seen_alive || self.means_ticks(claimed, claim, now) => {
                Found::Other
            }
            (Some(_), Some(_)) => Found::CannotTell,
            (Some(_), None) => Found::CannotTell,
            (None, _) => match (self.exists)(claim.pid) {
                Existence::There => Found::Hidden,
                Existence::Absent => Found::Absent,
                Existence::CannotTell => Found::CannotTell,
            },
        }
    }

    /// Whether a start time that fits no process is one as we understand it. Should an agent write another number there
    /// some day, all its sessions would seem dead.
    fn means_ticks(&self, start: u64, claim: &Claim<'_>, now: Timestamp) -> bool {
        let (Some(started), Some(boot)) = (claim.started, self.boot(now)) else { return true };
        let after_boot = started.since(boot);
        after_boot < 0 || start.saturating_mul(TICK_MS).abs_diff(after_boot.unsigned_abs()) <= START_SLACK_MS
    }

    fn domain(&self, claimed: Option<&str>) -> Domain {
        let Some(("linux", rest)) = claimed.and_then(|c| c.split_once(':')) else { return Domain::Unknown };
        let Some((boot, namespace)) = rest.split_once(':') else { return Domain::Unknown };
        let own_boot = fs::read_to_string(self.proc.join("sys/kernel/random/boot_id")).unwrap_or_default();
        let own_boot = own_boot.trim();
        if is_uuid(boot) && is_uuid(own_boot) && !boot.eq_ignore_ascii_case(own_boot) {
            return Domain::Foreign;
        }
        match self.namespace() {
            Some(own) if own == namespace => Domain::Ours,
            Some(_) if namespace.starts_with("pid:[") => Domain::Foreign,
            _ => Domain::Unknown,
        }
    }

    fn namespace(&self) -> Option<String> {
        fs::read_link(self.proc.join("self/ns/pid")).ok()?.into_os_string().into_string().ok()
    }

    /// Nothing that was written before the machine was started lives. Asked only in the first namespace: in a container
    /// the uptime may be the container's, and other entries come from outside it.
    fn is_from_before_boot(&self, claim: &Claim<'_>, now: Timestamp) -> bool {
        self.namespace().as_deref() == Some(INITIAL_NAMESPACE)
            && self.boot(now).is_some_and(|boot| boot.since(claim.last_word) > BOOT_SLACK_MS)
    }
}

/// `kill(pid, 0)`: delivers nothing. Unlike `/proc` it is not subject to `hidepid`.
fn exists(pid: i32) -> Existence {
    let Some(pid) = (pid > 0).then(|| Pid::from_raw(pid)).flatten() else { return Existence::CannotTell };
    meaning(test_kill_process(pid))
}

/// A sandbox or another user's process answers `EPERM`: it is there all the same.
fn meaning(answer: Result<(), Errno>) -> Existence {
    match answer {
        Ok(()) | Err(Errno::PERM) => Existence::There,
        Err(Errno::SRCH) => Existence::Absent,
        Err(_) => Existence::CannotTell,
    }
}

/// State and start time (fields 3 and 22) of `/proc/<pid>/stat`. The name in field 2 may hold anything, `)` and blanks
/// included, so fields are counted from its last `)`.
fn parse_stat(stat: &[u8]) -> Option<(u8, u64)> {
    let behind = stat.iter().rposition(|b| *b == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[behind..]).ok()?.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// Whether a file is there at all, opened by nobody.
pub(super) fn is_there(path: &Path) -> bool {
    !matches!(fs::symlink_metadata(path), Err(e) if e.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_answer_means_that_there_is_none() {
        assert_eq!(meaning(Ok(())), Existence::There);
        assert_eq!(meaning(Err(Errno::PERM)), Existence::There);
        assert_eq!(meaning(Err(Errno::SRCH)), Existence::Absent);
        assert_eq!(meaning(Err(Errno::INVAL)), Existence::CannotTell);
        assert_eq!(meaning(Err(Errno::NOSYS)), Existence::CannotTell);
    }

    #[test]
    fn the_name_of_a_process_may_hold_anything() {
        let zeros = "0 ".repeat(18);
        let line = |name: &str| format!("7 ({name}) S {zeros}4711 0 0\n").into_bytes();
        for name in ["claude", "a b", ")", ") Z 1 (", "", "\u{ffff}"] {
            assert_eq!(parse_stat(&line(name)), Some((b'S', 4711)), "{name}");
        }
        let cut = &line("claude")[..30];
        for damaged in [&b""[..], b"7 (claude", b"7 (claude)", b"7 (claude) S", cut, b"\xff)\xff 1"] {
            assert_eq!(parse_stat(damaged), None);
        }
    }
}
