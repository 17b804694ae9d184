//! Tokens and cost: additions, and maxima per model response.

use super::super::counts::{Count, Effects, TokenKind};
use super::super::facts::{Facts, MAX_RESPONSES};
use super::super::notes::What;
use super::short;
use crate::event::{Name, Timestamp, Usage};

// === impl Facts ===

impl Facts {
    pub(super) fn used(&mut self, usage: &Usage, t: Option<Timestamp>, out: &mut Effects) {
        let newest = t.is_none() || t >= self.last_activity;
        let cost =
            usage.cost_usd.filter(|c| c.is_finite() && *c > 0.0).map_or(0, |c| (c * 1e9).round() as u64);
        let mut added = [usage.input, usage.cache_read, usage.cache_write, usage.output, cost];
        if let Some(response) = &usage.response {
            let key = short(response);
            match self.memory.responses.iter_mut().find(|(k, _)| *k == key) {
                Some((_, seen)) => {
                    for (new, old) in added.iter_mut().zip(seen.iter_mut()) {
                        let most = (*new).max(*old);
                        *new = most - *old;
                        *old = most;
                    }
                }
                None => {
                    if self.memory.responses.len() >= MAX_RESPONSES {
                        self.memory.responses.pop_front();
                    }
                    self.memory.responses.push_back((key, added));
                }
            }
        }
        let model = usage.model.as_ref().or(self.info.model.as_ref()).cloned().unwrap_or_else(Name::none);
        let provider =
            usage.provider.as_ref().or(self.info.provider.as_ref()).cloned().unwrap_or_else(Name::none);
        for (kind, n) in TokenKind::ALL.into_iter().zip(added) {
            out.add(Count::Tokens(model.clone(), provider.clone(), kind), n);
        }
        out.add(Count::CostNano(model, provider), added[4]);
        if added.iter().any(|n| *n > 0) {
            self.note(t, &mut out.notes, || What::Usage(added));
        }
        let total = &mut self.usage;
        // Numbers from outside: they may be absurd, but must not wrap.
        total.input = total.input.saturating_add(added[0]);
        total.cache_read = total.cache_read.saturating_add(added[1]);
        total.cache_write = total.cache_write.saturating_add(added[2]);
        total.output = total.output.saturating_add(added[3]);
        total.cost_nano = total.cost_nano.saturating_add(added[4]);
        total.seen = true;
        total.cost_seen |= usage.cost_usd.is_some();
        if usage.context_used.is_some() && newest {
            self.context_used = usage.context_used;
        }
        if added.iter().any(|n| *n > 0) {
            // The tokens of a message are reported after it: it stays the last word.
            let message_last = self.message_last;
            self.work(t, out);
            self.message_last = message_last;
        }
    }
}
