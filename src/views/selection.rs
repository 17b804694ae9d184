//! Which sessions have series of their own: by mode, by what is left of their time after the end, and by the cap.
//! Aggregates do not depend on mode and cap. What a session's series are is said in [`super::families`].

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::event::{SessionId, SourceId, Timestamp};
use crate::session::{Derived, Reason, Snapshot, State};
use crate::views::families::{OrchestrationView, SessionView, Totals};

/// How long a session keeps its series in [`SeriesMode::Attention`] after it left the set.
const ATTENTION_LINGERS_MS: i64 = 15 * 60_000;
/// Calls without progress from which a session deserves a look, as in the alert rules.
const ATTENTION_CALLS: u32 = 20;

/// Orchestrations that have series, at most: each may have some two hundred.
const MAX_ORCHESTRATIONS: usize = 100;

/// Which per-session series are exposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeriesMode {
    /// Every session, the signals that rules use.
    #[default]
    Full,
    /// Every session, every signal.
    All,
    /// Sessions that somebody should look at.
    Attention,
    /// None; aggregates alone.
    Off,
}

/// What bounds the series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which sessions are exposed.
    pub mode: SeriesMode,
    /// How many of them, at most.
    pub max_sessions: usize,
    /// How long series outlive the end of their session.
    pub ended_grace: Duration,
    /// How long series outlive the moment from which nothing is known.
    pub unknown_grace: Duration,
}

/// What has to be remembered from one scrape to the next.
#[derive(Debug, Default)]
pub struct Memory {
    /// When each session was last seen among those that need attention.
    attention: HashMap<Key, Timestamp>,
    /// The same of orchestrations.
    orchestrations: HashMap<Key, Timestamp>,
    /// Sessions that lack series because of the cap.
    beyond: HashSet<Key>,
}

/// What is shown at one moment.
#[derive(Debug)]
pub struct Selected<'a> {
    /// Sessions that have series of their own.
    pub sessions: Vec<SessionView<'a>>,
    /// Sums over all sessions that are present.
    pub totals: Totals<'a>,
    /// Orchestrations that have series.
    pub orchestrations: Vec<OrchestrationView<'a>>,
    /// Sessions that newly lack series because of the cap.
    pub evicted: u64,
}

type Key = (SourceId, SessionId);

/// Order in which sessions lose their series beyond the cap; the first go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    Ended,
    Unknown,
    /// Between turns: a prompt opens it again.
    Idle,
    Working,
    /// Waiting, blocked or stalled.
    HeldUp,
}

// === impl SeriesMode ===

impl SeriesMode {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Full, Self::All, Self::Attention, Self::Off];

    /// The word of the flag and of the label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::All => "all",
            Self::Attention => "attention",
            Self::Off => "off",
        }
    }

    /// The mode with this spelling.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: SeriesMode::default(),
            max_sessions: 1000,
            ended_grace: Duration::from_secs(15 * 60),
            unknown_grace: Duration::from_secs(24 * 3600),
        }
    }
}

impl Options {
    /// Whether neither mode nor cap can leave out one of so many sessions.
    pub fn keeps_all(&self, sessions: usize) -> bool {
        matches!(self.mode, SeriesMode::Full | SeriesMode::All) && sessions <= self.max_sessions
    }

    /// Whether a session is still to be seen: not deleted, and its end not too long ago.
    pub fn is_present(&self, session: &SessionView<'_>) -> bool {
        session.facts().deleted_at.is_none() && self.lasts(&session.derived, session.rollup.now)
    }

    /// Everything that is shown of a snapshot at a moment.
    pub fn select<'a>(&self, snapshot: &'a Snapshot, now: Timestamp, memory: &mut Memory) -> Selected<'a> {
        let mut sessions: Vec<SessionView<'_>> =
            SessionView::roots(snapshot, now).filter(|s| self.is_present(s)).collect();
        let totals = Totals::of(snapshot, &sessions);
        let evicted = memory.select(&mut sessions, self, now);
        let orchestrations = memory.orchestrations(snapshot, self, now);
        Selected { sessions, totals, orchestrations, evicted }
    }

    fn lasts(&self, derived: &Derived, now: Timestamp) -> bool {
        let grace = match derived.state {
            State::Unknown => self.unknown_grace,
            state if state.is_end() => self.ended_grace,
            _ => return true,
        };
        now.since(derived.since) < i64::try_from(grace.as_millis()).unwrap_or(i64::MAX)
    }
}

// === impl Memory ===

impl Memory {
    /// Leaves the sessions that have series, in their order. Returns how many newly lack them because of the cap.
    pub fn select(&mut self, sessions: &mut Vec<SessionView<'_>>, options: &Options, now: Timestamp) -> u64 {
        match options.mode {
            SeriesMode::Full | SeriesMode::All => {}
            SeriesMode::Attention => self.keep_attention(sessions, now),
            SeriesMode::Off => sessions.clear(),
        }
        self.keep_most_worth(sessions, options.max_sessions)
    }

    /// The orchestrations that have series, by the same modes and times as sessions, but with a cap of their own: of too
    /// many those stay that were heard of last.
    pub fn orchestrations<'a>(
        &mut self,
        snapshot: &'a Snapshot,
        options: &Options,
        now: Timestamp,
    ) -> Vec<OrchestrationView<'a>> {
        if options.mode == SeriesMode::Off {
            return Vec::new();
        }
        let all = OrchestrationView::all(snapshot, now);
        let mut kept: Vec<_> =
            all.filter(|o| o.facts.deleted_at.is_none() && options.lasts(&o.derived, now)).collect();
        if options.mode == SeriesMode::Attention {
            let key = |o: &OrchestrationView<'_>| (o.facts.source.clone(), o.facts.session.clone());
            for run in kept.iter().filter(|o| o.needs_attention()) {
                self.orchestrations.insert(key(run), now);
            }
            self.orchestrations.retain(|_, last| now.since(*last) < ATTENTION_LINGERS_MS);
            kept.retain(|o| self.orchestrations.contains_key(&key(o)));
        }
        if kept.len() > MAX_ORCHESTRATIONS {
            kept.sort_by_key(|o| Reverse(o.facts.last_heard()));
            kept.truncate(MAX_ORCHESTRATIONS);
            kept.sort_by(|a, b| a.key().cmp(&b.key()));
        }
        kept
    }

    fn keep_attention(&mut self, sessions: &mut Vec<SessionView<'_>>, now: Timestamp) {
        for session in sessions.iter().filter(|s| needs_attention(s)) {
            self.attention.insert(key(session), now);
        }
        self.attention.retain(|_, last| now.since(*last) < ATTENTION_LINGERS_MS);
        sessions.retain(|s| self.attention.contains_key(&key(s)));
    }

    fn keep_most_worth(&mut self, sessions: &mut Vec<SessionView<'_>>, max: usize) -> u64 {
        if sessions.len() <= max {
            self.beyond.clear();
            return 0;
        }
        let mut ranked: Vec<usize> = (0..sessions.len()).collect();
        ranked.sort_by_cached_key(|i| {
            let session = &sessions[*i];
            let heard = session.last_activity.unwrap_or_else(|| session.facts().last_heard());
            (Reverse((worth(session), heard)), *i)
        });
        let mut stays = vec![false; sessions.len()];
        for i in &ranked[..max] {
            stays[*i] = true;
        }
        let beyond: HashSet<Key> =
            sessions.iter().zip(&stays).filter(|(_, stays)| !**stays).map(|(s, _)| key(s)).collect();
        let newly = beyond.difference(&self.beyond).count() as u64;
        self.beyond = beyond;
        let mut stays = stays.into_iter();
        sessions.retain(|_| stays.next().unwrap_or(false));
        newly
    }
}

fn key(session: &SessionView<'_>) -> Key {
    (session.facts().source.clone(), session.facts().session.clone())
}

fn needs_attention(session: &SessionView<'_>) -> bool {
    session.derived.state.needs_attention()
        || session.facts().stop.is_some_and(|stop| stop.pending)
        || !session.is_over() && session.signals().is_some_and(|s| s.calls_since_progress >= ATTENTION_CALLS)
}

fn worth(session: &SessionView<'_>) -> Worth {
    match (session.derived.state, session.derived.reason) {
        (State::Completed, Reason::TurnComplete | Reason::BackgroundOpen) => Worth::Idle,
        (State::Completed | State::Failed | State::Cancelled, _) => Worth::Ended,
        (State::Unknown, _) => Worth::Unknown,
        (State::Queued | State::Running | State::Progressing, _) => Worth::Working,
        (State::WaitingForUser | State::Blocked | State::Stalled, _) => Worth::HeldUp,
    }
}
