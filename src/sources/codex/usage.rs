//! Tokens: records per model response where the file has them, else growth of the running total. What a fork or
//! a sub-agent inherited from its parent is a baseline, and the file itself says how much that is.

use serde::{Deserialize, Serialize};

use super::wire::{Raw, TokenInfo, TokenNumbers, count, object};
use crate::event::{Timestamp, Usage};

/// Token counts stamped so shortly after a thread's creation were copied into it: no model answers that fast.
const CREATION_BURST_MS: i64 = 100;

/// Token numbers in disjoint kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tokens {
    input: u64,
    cache_read: u64,
    cache_write: u64,
    output: u64,
    total: u64,
}

/// What is known of a thread's tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tracker {
    /// Last running total, inherited ones included.
    total: Option<Tokens>,
    /// Whether a running total of the thread's own was seen.
    own: bool,
    /// Whether the thread began with copied history.
    pub(super) copied: bool,
    /// When the thread was created, as its file says.
    pub(super) created: Option<Timestamp>,
    /// Time of the last inherited count: a burst has one time.
    burst: Option<Timestamp>,
    /// Whether the file has records per response, which then alone count.
    pub(super) records: bool,
    /// Last share of the context window that was told.
    context: Option<u64>,
}

// === impl Tokens ===

impl Tokens {
    /// Reads the numbers; Codex counts cached tokens as input and reasoning as output.
    pub(super) fn read(raw: Raw<'_>) -> Option<Self> {
        raw.map(|_| Self::of(&object(raw)))
    }

    /// The same, from numbers that stand among other fields.
    pub(super) fn of(n: &TokenNumbers<'_>) -> Self {
        let (input, cache_read) = (count(n.input_tokens), count(n.cached_input_tokens));
        let (cache_write, output) = (count(n.cache_write_input_tokens), count(n.output_tokens));
        let total = count(n.total_tokens).max(input.saturating_add(output));
        let input = input.saturating_sub(cache_read).saturating_sub(cache_write);
        Self { input, cache_read, cache_write, output, total }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            input: self.input.saturating_sub(earlier.input),
            cache_read: self.cache_read.saturating_sub(earlier.cache_read),
            cache_write: self.cache_write.saturating_sub(earlier.cache_write),
            output: self.output.saturating_sub(earlier.output),
            total: self.total.saturating_sub(earlier.total),
        }
    }

    fn plus(self, more: Self) -> Self {
        Self {
            input: self.input.saturating_add(more.input),
            cache_read: self.cache_read.saturating_add(more.cache_read),
            cache_write: self.cache_write.saturating_add(more.cache_write),
            output: self.output.saturating_add(more.output),
            total: self.total.saturating_add(more.total),
        }
    }

    fn is_nothing(self) -> bool {
        self.input == 0 && self.cache_read == 0 && self.cache_write == 0 && self.output == 0
    }

    /// As a fact.
    pub(super) fn usage(self) -> Usage {
        Usage {
            input: self.input,
            cache_read: self.cache_read,
            cache_write: self.cache_write,
            output: self.output,
            ..Usage::default()
        }
    }
}

// === impl Tracker ===

impl Tracker {
    /// Whether a line of this time was copied into the thread at its creation.
    pub(super) fn is_burst(&self, time: Option<Timestamp>) -> bool {
        let (true, Some(created), Some(time)) = (self.copied, self.created, time) else { return false };
        time.since(created) <= CREATION_BURST_MS || self.burst == Some(time)
    }

    /// Takes a `token_count`'s `info`; the fact it gives, or `None` where it repeats what was known.
    pub(super) fn take_info(
        &mut self,
        raw: Raw<'_>,
        time: Option<Timestamp>,
        inherited: bool,
    ) -> Option<Usage> {
        let info: TokenInfo<'_> = object(raw);
        let last = Tokens::read(info.last_token_usage);
        let total = Tokens::read(info.total_token_usage).or_else(|| {
            // An early shape without totals.
            let (input, output) = (count(info.prompt), count(info.completion));
            let total = input.saturating_add(output);
            (total > 0).then(|| Tokens { input, output, total, ..Tokens::default() })
        })?;
        if inherited || (!self.own && self.is_burst(time)) {
            self.burst = time;
            self.total = Some(total);
            return None;
        }
        let growth = self.grow(total, last);
        let growth = if self.records { Tokens::default() } else { growth };
        let mut usage = growth.usage();
        let window = count(info.model_context_window);
        let in_context = last.map_or(0, |l| l.total);
        let news = window > 0 && in_context > 0 && self.context != Some(in_context);
        if news {
            self.context = Some(in_context);
            usage.context_used = Some((in_context as f64 / window as f64).min(1.0));
        }
        (news || !growth.is_nothing()).then_some(usage)
    }

    /// Takes a running total; what it adds.
    pub(super) fn take_total(&mut self, total: Tokens) -> Option<Usage> {
        let growth = self.grow(total, None);
        (!self.records && !growth.is_nothing()).then(|| growth.usage())
    }

    /// Takes an addition that is no total.
    pub(super) fn take_addition(&mut self, addition: Tokens) -> Option<Usage> {
        self.total = Some(self.total.unwrap_or_default().plus(addition));
        self.own = true;
        (!addition.is_nothing()).then(|| addition.usage())
    }

    fn grow(&mut self, total: Tokens, last: Option<Tokens>) -> Tokens {
        let first = !self.own;
        self.own = true;
        let baseline = match (self.total, last) {
            (Some(known), _) if known == total => known,
            // Two threads in one file: the second counts from its own beginning.
            (Some(known), _) if total.total < known.total && !first => Tokens::default(),
            // A thread that begins from zero although its history was copied.
            (_, Some(last)) if first && self.copied && total == last => Tokens::default(),
            // The copied history is not in the file: what lies beyond the first own response was inherited.
            (None, Some(last)) if self.copied => total.since(last),
            (Some(known), _) if total.total < known.total => Tokens::default(),
            (known, _) => known.unwrap_or_default(),
        };
        self.total = Some(total);
        total.since(baseline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(total: u64, last: u64) -> String {
        let numbers = |n: u64| format!(r#"{{"input_tokens":{n},"output_tokens":0,"total_tokens":{n}}}"#);
        format!(r#"{{"total_token_usage":{},"last_token_usage":{}}}"#, numbers(total), numbers(last))
    }

    fn added(t: &mut Tracker, total: u64, last: u64, ms: i64) -> u64 {
        let json = info(total, last);
        t.take_info(super::super::wire::json(&json), Some(Timestamp::from_millis(ms)), false)
            .map_or(0, |u| u.input)
    }

    fn child() -> Tracker {
        Tracker { copied: true, created: Some(Timestamp::from_millis(1_000)), ..Tracker::default() }
    }

    #[test]
    fn a_burst_at_creation_is_the_baseline() {
        let mut t = child();
        let sum: u64 = (1..=500).map(|n| added(&mut t, n * 10, 10, 1_000)).sum();
        assert_eq!(sum, 0);
        let sum: u64 = (1..=15).map(|n| added(&mut t, 5_000 + n * 7, 7, 9_000 + n as i64 * 1_000)).sum();
        assert_eq!(sum, 105);
    }

    #[test]
    fn a_child_that_starts_from_zero_counts_all() {
        let mut t = child();
        assert_eq!(added(&mut t, 14_700, 14_700, 9_000), 14_700);
        assert_eq!(added(&mut t, 20_000, 5_300, 10_000), 5_300);
    }

    #[test]
    fn a_child_that_starts_from_its_parents_total_counts_its_own() {
        let mut t = child();
        assert_eq!(added(&mut t, 60_000, 500, 9_000), 500);
        assert_eq!(added(&mut t, 60_700, 700, 10_000), 700);
    }

    #[test]
    fn impossible_numbers_are_none() {
        for (n, told) in
            [("1e12", Some(1_000_000_000_000)), ("1e300", None), ("18446744073709551615", None), ("-1", None)]
        {
            let json = format!(r#"{{"prompt":{n},"completion":{n}}}"#);
            let usage = Tracker::default().take_info(super::super::wire::json(&json), None, false);
            assert_eq!(usage.map(|u| u.input), told, "{n}");
        }
    }

    #[test]
    fn a_thread_of_its_own_counts_from_zero_and_never_falls() {
        let mut t = Tracker::default();
        assert_eq!(added(&mut t, 100, 100, 1), 100);
        assert_eq!(added(&mut t, 100, 100, 2), 0);
        assert_eq!(added(&mut t, 150, 50, 3), 50);
        assert_eq!(added(&mut t, 30, 30, 4), 30);
        assert_eq!(added(&mut t, 40, 10, 5), 10);
    }
}
