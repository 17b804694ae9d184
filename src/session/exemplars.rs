//! Examples of what histograms count: of each bucket the newest observation that has a span. Only whoever tells spans
//! knows their ids; here is where views find them.

use std::collections::{HashMap, HashSet};

use super::counts::{BUCKETS, Histogram, Observation};
use crate::event::{SourceId, Timestamp};

/// An observation with the ids of its span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemplar {
    /// The trace.
    pub trace: [u8; 16],
    /// The span.
    pub span: [u8; 8],
    /// How long it took, in milliseconds.
    pub ms: u64,
    /// When it was over.
    pub at: Timestamp,
}

/// Those of one histogram, one for each bucket.
pub type Newest = [Option<Exemplar>; BUCKETS.len() + 1];

/// Those of all histograms; as many as there are buckets at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exemplars {
    /// What was over before is in no histogram; without it nothing is taken.
    since: Option<Timestamp>,
    newest: HashMap<(SourceId, Observation), Newest>,
}

// === impl Exemplars ===

impl Exemplars {
    /// Takes those of observations from this moment on.
    pub fn since(since: Timestamp) -> Self {
        Self { since: Some(since), newest: HashMap::new() }
    }

    /// Whether any are taken.
    pub const fn is_wanted(&self) -> bool {
        self.since.is_some()
    }

    /// Takes one, unless its bucket has a newer one.
    pub fn take(&mut self, source: &SourceId, what: Observation, exemplar: Exemplar) {
        if self.since.is_none_or(|since| exemplar.at < since) {
            return;
        }
        let newest = self.newest.entry((source.clone(), what)).or_default();
        let place = &mut newest[Histogram::bucket_of(exemplar.ms)];
        if place.is_none_or(|known| known.at <= exemplar.at) {
            *place = Some(exemplar);
        }
    }

    /// Whether one of them names one of these spans.
    pub fn name_any(&self, spans: &HashSet<[u8; 8]>) -> bool {
        self.newest.values().flatten().flatten().any(|exemplar| spans.contains(&exemplar.span))
    }

    /// Forgets those that name one of these spans.
    pub fn forget(&mut self, spans: &HashSet<[u8; 8]>) {
        for place in self.newest.values_mut().flatten() {
            *place = place.filter(|exemplar| !spans.contains(&exemplar.span));
        }
        self.newest.retain(|_, newest| newest.iter().any(Option::is_some));
    }

    /// Those of a histogram, if it has any.
    pub fn of(&self, key: &(SourceId, Observation)) -> Option<&Newest> {
        self.newest.get(key)
    }
}
