//! What is told, and when: each episode of an alert once, so many a minute, the rest in sums. Pure; it is handed the time
//! and told what was done.
//!
//! An episode is a fingerprint with the time at which it began. Alertmanager sends a group again when it changes, after its
//! `repeat_interval` and after a restart; none of this is news. What was told is kept in memory only: after a restart of this
//! program what still holds is told once more, like after any new login.
//!
//! An alert that is over takes its notification away: what is left on the screen is what somebody still has to look at,
//! and that something is over is no reason to disturb. Events (`category="event"`) are different: their alerts end because
//! the series of an ended session leave, so they stay until somebody has seen them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use super::notice::Notice;
use super::webhook::{Alert, Status};
use crate::event::Timestamp;

/// Episodes that are remembered; those that are over leave first, then the oldest.
const MAX_KNOWN: usize = 4096;
/// Notices that are held with their text; of more only the number is known.
const MAX_HELD: usize = 256;
/// Groups of which it is remembered how many alerts they left out.
const MAX_GROUPS: usize = 256;

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Notifications a minute.
    pub per_minute: u32,
    /// Notifications at once after silence.
    pub burst: u32,
}

/// A notification on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// Its number there.
    pub(super) id: u32,
    /// Who shows it, by the name that the bus gave to this one process.
    pub(super) by: String,
    /// Through which of our connections it was raised; on another bus the same names mean others.
    pub(super) connection: u64,
}

/// What an alert asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing: it was told.
    Known,
    /// Tell it now.
    Raise {
        /// The notification of an earlier episode that nobody said was over.
        instead_of: Option<Shown>,
    },
    /// Tell it later, with others.
    Hold,
    /// It is over.
    Over {
        /// What is to be taken away.
        close: Option<Shown>,
    },
}

/// What was told.
#[derive(Debug)]
pub(super) struct Policy {
    bucket: Bucket,
    known: HashMap<String, Episode>,
    /// Counts what was learnt, for the age of episodes.
    turn: u64,
    /// Over the limit, by turn.
    held: BTreeMap<u64, (String, Notice)>,
    /// Over the limit, without text.
    more: u64,
    /// By the hash of a group's key: how many alerts it left out that were told of.
    groups: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Episode {
    began: Timestamp,
    over: bool,
    shown: Option<Shown>,
    turn: u64,
}

/// A token is a notification that may be raised.
#[derive(Debug)]
struct Bucket {
    burst: f64,
    per_second: f64,
    /// How many there were, and when.
    last: Option<(f64, Instant)>,
}

// === impl Policy ===

impl Policy {
    /// Nothing is known.
    pub(super) fn new(limits: Limits) -> Self {
        let (burst, per_second) = (f64::from(limits.burst), f64::from(limits.per_minute) / 60.0);
        Self {
            bucket: Bucket { burst, per_second, last: None },
            known: HashMap::new(),
            turn: 0,
            held: BTreeMap::new(),
            more: 0,
            groups: BTreeMap::new(),
        }
    }

    /// What an alert asks for. What was done about it is then said by [`raised`](Self::raised), [`hold`](Self::hold) or
    /// [`over`](Self::over); an alert that could not be told is thus asked about again.
    pub(super) fn judge(&self, alert: &Alert, now: Instant) -> Verdict {
        let episode = self.known.get(&alert.fingerprint);
        let shown = || episode.and_then(|e| e.shown.clone());
        match (alert.status, episode) {
            // What is over and holds again with its old beginning (Prometheus was away for a while) is back: its
            // notification was taken away.
            (Status::Firing, Some(e))
                if alert.starts_at < e.began || (alert.starts_at == e.began && !e.over) =>
            {
                Verdict::Known
            }
            // Those that wait are told first.
            (Status::Firing, _) if self.waiting() || self.bucket.wait(now) > Duration::ZERO => Verdict::Hold,
            (Status::Firing, _) => Verdict::Raise { instead_of: shown() },
            (Status::Resolved, Some(e)) if !e.over && alert.starts_at >= e.began => {
                Verdict::Over { close: shown().filter(|_| alert.label("category") != "event") }
            }
            (Status::Resolved, _) => Verdict::Known,
        }
    }

    /// This alert was told.
    pub(super) fn raised(&mut self, alert: &Alert, shown: Shown, now: Instant) {
        self.bucket.take(now);
        self.learn(alert, Some(shown));
    }

    /// This alert is to be told later.
    pub(super) fn hold(&mut self, alert: &Alert, notice: Notice) {
        self.drop_held(&alert.fingerprint);
        let before = self.known.get(&alert.fingerprint).and_then(|e| e.shown.clone());
        self.learn(alert, before);
        if self.held.len() < MAX_HELD {
            self.held.insert(self.turn, (alert.fingerprint.clone(), notice));
        } else {
            self.more += 1;
        }
    }

    /// This alert is over. One that was not told yet need not be told any more.
    pub(super) fn over(&mut self, alert: &Alert) {
        self.drop_held(&alert.fingerprint);
        if let Some(episode) = self.known.get_mut(&alert.fingerprint) {
            (episode.over, episode.shown, episode.began) = (true, None, alert.starts_at.max(episode.began));
        }
    }

    /// A group left out so many alerts that hold. Which they are nobody says, so only a growing number is news.
    pub(super) fn truncated(&mut self, group: &str, count: u64) {
        // A key is as long as somebody's labels are; its hash is not, and nobody has a reason to make two alike.
        let mut hasher = DefaultHasher::new();
        group.hash(&mut hasher);
        let group = hasher.finish();
        let before = if count == 0 { self.groups.remove(&group) } else { self.groups.insert(group, count) };
        self.more = self.more.saturating_add(count.saturating_sub(before.unwrap_or(0)));
        if self.groups.len() > MAX_GROUPS {
            self.groups.pop_first();
        }
    }

    /// When something that waits may be told; `None` if nothing waits.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        self.waiting().then(|| now + self.bucket.wait(now))
    }

    /// All that waits as one notice. An alert that waits alone is told like any other.
    pub(super) fn sum(&self) -> Option<Notice> {
        match (self.held.values().next(), self.held.len(), self.more) {
            (None, _, 0) => None,
            (Some((_, only)), 1, 0) => Some(only.clone()),
            (_, _, more) => Some(Notice::sum(self.held.values().map(|(_, notice)| notice), more)),
        }
    }

    /// What [`sum`](Self::sum) gave was told.
    pub(super) fn told(&mut self, shown: Shown, now: Instant) {
        self.bucket.take(now);
        // A notification about several stays when one of them is over.
        if self.held.len() == 1
            && self.more == 0
            && let Some((_, (fingerprint, _))) = self.held.pop_first()
            && let Some(episode) = self.known.get_mut(&fingerprint)
        {
            episode.shown = Some(shown);
        }
        self.held.clear();
        self.more = 0;
    }

    fn waiting(&self) -> bool {
        !self.held.is_empty() || self.more > 0
    }

    fn learn(&mut self, alert: &Alert, shown: Option<Shown>) {
        self.turn += 1;
        let episode = Episode { began: alert.starts_at, over: false, shown, turn: self.turn };
        self.known.insert(alert.fingerprint.clone(), episode);
        if self.known.len() > MAX_KNOWN {
            self.forget();
        }
    }

    /// Makes room for some time.
    fn forget(&mut self) {
        let age = |e: &Episode| (!e.over, e.turn);
        let mut ages: Vec<_> = self.known.values().map(age).collect();
        let (_, limit, _) = ages.select_nth_unstable(MAX_KNOWN / 8);
        let limit = *limit;
        self.known.retain(|_, e| age(e) > limit);
    }

    fn drop_held(&mut self, fingerprint: &str) {
        self.held.retain(|_, (held, _)| held != fingerprint);
    }
}

// === impl Bucket ===

impl Bucket {
    fn tokens(&self, now: Instant) -> f64 {
        self.last.map_or(self.burst, |(tokens, then)| {
            let since = now.saturating_duration_since(then).as_secs_f64();
            (tokens + since * self.per_second).min(self.burst)
        })
    }

    /// How long it takes until there is one.
    fn wait(&self, now: Instant) -> Duration {
        let missing = (1.0 - self.tokens(now)).max(0.0);
        // Rounded up, so that after it there is one.
        Duration::from_millis((missing / self.per_second * 1000.0).ceil() as u64)
    }

    fn take(&mut self, now: Instant) {
        self.last = Some(((self.tokens(now) - 1.0).max(0.0), now));
    }
}

#[cfg(test)]
mod tests {
    use super::super::notice::Urgency;
    use super::super::webhook::tests::alert;
    use super::*;

    const LIMITS: Limits = Limits { per_minute: 6, burst: 3 };

    /// A policy with a hand on its clock and a desktop that counts.
    struct Stand {
        policy: Policy,
        now: Instant,
        next: u32,
    }

    impl Stand {
        fn new(limits: Limits) -> Self {
            Self { policy: Policy::new(limits), now: Instant::now(), next: 0 }
        }

        fn shown(&mut self) -> Shown {
            self.next += 1;
            Shown { id: self.next, by: ":1.1".to_owned(), connection: 1 }
        }

        /// Judges and does what follows.
        fn take(&mut self, alert: &Alert) -> Verdict {
            let verdict = self.policy.judge(alert, self.now);
            match verdict {
                Verdict::Known => {}
                Verdict::Raise { .. } => {
                    let shown = self.shown();
                    self.policy.raised(alert, shown, self.now);
                }
                Verdict::Hold => self.policy.hold(alert, Notice::of(alert)),
                Verdict::Over { .. } => self.policy.over(alert),
            }
            verdict
        }

        /// Tells what waits, if it is due.
        fn tell(&mut self) -> Option<Notice> {
            if self.policy.due(self.now).is_none_or(|due| due > self.now) {
                return None;
            }
            let notice = self.policy.sum();
            let shown = self.shown();
            self.policy.told(shown, self.now);
            notice
        }

        fn wait(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
        }
    }

    fn resolved(of: &Alert) -> Alert {
        Alert { status: Status::Resolved, ..of.clone() }
    }

    fn closes(verdict: &Verdict) -> Option<u32> {
        match verdict {
            Verdict::Over { close } => close.as_ref().map(|s| s.id),
            Verdict::Raise { instead_of } => instead_of.as_ref().map(|s| s.id),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_episode_is_told_once() {
        let mut stand = Stand::new(LIMITS);
        let alert = alert("A", "s", "warning", 1000);
        assert_eq!(stand.take(&alert), Verdict::Raise { instead_of: None });
        stand.wait(4 * 3600);
        assert_eq!(stand.take(&alert), Verdict::Known, "repeated");
        let reworded = Alert { annotations: std::collections::BTreeMap::new(), ..alert.clone() };
        assert_eq!(stand.take(&reworded), Verdict::Known, "its value changed");
        let late = Alert { starts_at: Timestamp::from_millis(999), ..alert };
        assert_eq!(stand.take(&late), Verdict::Known, "an older one, late");
    }

    #[test]
    fn what_could_not_be_told_is_asked_about_again() {
        let stand = Stand::new(LIMITS);
        let alert = alert("A", "s", "warning", 1000);
        for _ in 0..10 {
            assert_eq!(stand.policy.judge(&alert, stand.now), Verdict::Raise { instead_of: None });
        }
    }

    #[test]
    fn a_new_episode_is_told_and_takes_the_place_of_the_old() {
        let mut stand = Stand::new(LIMITS);
        let first = alert("A", "s", "warning", 1000);
        let second = Alert { starts_at: Timestamp::from_millis(2000), ..first.clone() };
        stand.take(&first);
        assert_eq!(closes(&stand.take(&second)), Some(1), "nobody said that the first is over");
        assert_eq!(closes(&stand.take(&resolved(&second))), Some(2));
        let third = Alert { starts_at: Timestamp::from_millis(3000), ..first };
        assert_eq!(closes(&stand.take(&third)), None);
    }

    #[test]
    fn what_is_over_leaves_the_screen_once() {
        let mut stand = Stand::new(LIMITS);
        let alert = alert("A", "s", "warning", 1000);
        assert_eq!(stand.take(&resolved(&alert)), Verdict::Known, "never told of");
        stand.take(&alert);
        assert_eq!(closes(&stand.take(&resolved(&alert))), Some(1));
        assert_eq!(stand.take(&resolved(&alert)), Verdict::Known);
        assert_eq!(
            closes(&stand.take(&alert)),
            None,
            "back with its old beginning: nothing shows it any more"
        );
        assert_eq!(closes(&stand.take(&resolved(&alert))), Some(2));
    }

    #[test]
    fn events_stay_on_the_screen() {
        let mut stand = Stand::new(LIMITS);
        let mut alert = alert("AgentSessionFailed", "s", "warning", 1000);
        alert.labels.insert("category".to_owned(), "event".to_owned());
        stand.take(&alert);
        assert_eq!(stand.take(&resolved(&alert)), Verdict::Over { close: None });
    }

    #[test]
    fn more_than_the_limit_is_told_in_one() {
        let mut stand = Stand::new(LIMITS);
        let told = |n: i64| alert("A", &format!("s{n}"), if n == 7 { "critical" } else { "warning" }, n);
        for n in 0..3 {
            assert_eq!(stand.take(&told(n)), Verdict::Raise { instead_of: None }, "{n}");
        }
        for n in 3..9 {
            assert_eq!(stand.take(&told(n)), Verdict::Hold, "{n}");
            assert_eq!(stand.take(&told(n)), Verdict::Known, "{n} waits already");
        }
        assert_eq!(stand.policy.due(stand.now), Some(stand.now + Duration::from_secs(10)), "six a minute");
        stand.wait(9);
        assert_eq!(stand.tell(), None);
        assert_eq!(
            stand.take(&resolved(&told(3))),
            Verdict::Over { close: None },
            "it need not be told any more"
        );
        stand.wait(1);
        let sum = stand.tell().unwrap();
        assert_eq!((sum.title.as_str(), sum.urgency), ("and 5 more alerts", Urgency::Critical));
        assert_eq!(stand.policy.due(stand.now), None);
        assert_eq!(stand.take(&told(4)), Verdict::Known, "told in the sum");
        assert_eq!(
            stand.take(&resolved(&told(4))),
            Verdict::Over { close: None },
            "the others are still in it"
        );
    }

    #[test]
    fn one_that_waits_alone_is_told_like_any_other() {
        let mut stand = Stand::new(Limits { per_minute: 1, burst: 1 });
        stand.take(&alert("A", "first", "warning", 1));
        let second = alert("A", "second", "warning", 1);
        assert_eq!(stand.take(&second), Verdict::Hold);
        stand.wait(60);
        assert_eq!(stand.take(&alert("A", "third", "warning", 1)), Verdict::Hold, "it does not overtake");
        stand.take(&resolved(&alert("A", "third", "warning", 1)));
        assert_eq!(stand.tell().unwrap().title, "second");
        assert_eq!(closes(&stand.take(&resolved(&second))), Some(2));
    }

    #[test]
    fn no_hour_has_more_than_its_minutes_allow() {
        let mut stand = Stand::new(LIMITS);
        let mut said = 0;
        for second in 0..3600 {
            for n in 0..3 {
                let one = alert("A", &format!("{second}-{n}"), "warning", second);
                said += usize::from(matches!(stand.take(&one), Verdict::Raise { .. }));
            }
            said += usize::from(stand.tell().is_some());
            stand.wait(1);
        }
        assert!((360..=363).contains(&said), "{said}");
    }

    #[test]
    fn left_out_alerts_are_counted_once() {
        let mut stand = Stand::new(LIMITS);
        let mut said = |count: u64| {
            stand.policy.truncated("{}:{a=\"b\"}", count);
            stand.wait(60);
            stand.tell().map(|notice| notice.title)
        };
        assert_eq!(said(0), None);
        assert_eq!(said(5).as_deref(), Some("and 5 more alerts"));
        assert_eq!(said(5), None, "repeated");
        assert_eq!(said(6).as_deref(), Some("and 1 more alert"));
        assert_eq!(said(2), None);
        assert_eq!(said(0), None);
        assert_eq!(said(1).as_deref(), Some("and 1 more alert"), "a new crowd");
    }

    #[test]
    fn memory_is_bounded_and_forgets_what_is_over_first() {
        let mut stand = Stand::new(Limits { per_minute: 60_000, burst: 2 });
        let lasting = alert("A", "lasting", "warning", 1);
        stand.take(&lasting);
        for n in 0..10_000 {
            stand.wait(1);
            let passing = alert("A", &n.to_string(), "warning", n);
            stand.take(&passing);
            stand.take(&resolved(&passing));
        }
        assert!(stand.policy.known.len() <= MAX_KNOWN);
        assert_eq!(stand.take(&lasting), Verdict::Known);
        for n in 0..10_000 {
            stand.take(&alert("B", &n.to_string(), "warning", n));
            stand.policy.truncated(&n.to_string(), 1);
        }
        let policy = &stand.policy;
        assert!(
            policy.known.len() <= MAX_KNOWN
                && policy.held.len() <= MAX_HELD
                && policy.groups.len() <= MAX_GROUPS
        );
        stand.wait(1);
        assert_eq!(stand.tell().unwrap().title, "and 19999 more alerts", "what is not kept is counted");
    }
}
