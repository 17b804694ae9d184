//! Spans as examples of what histograms count. Only spans that were told are, and only as long as nobody let them go unsent:
//! whoever follows one finds it. A restart begins without any.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Outgoing, Tracer};
use crate::event::{SourceId, Timestamp};
use crate::session::counts::Observation;
use crate::session::exemplars::{Exemplar, Exemplars};
use crate::session::notes::{Ended, What};

// === impl Tracer ===

impl Tracer {
    /// Nothing is under way. `exemplars_since`: since when histograms count, where they are to have examples.
    pub fn new(exemplars_since: Option<Timestamp>) -> Self {
        let mut tracer = Self::default();
        tracer.exemplars = Arc::new(exemplars_since.map(Exemplars::since).unwrap_or_default());
        tracer
    }

    /// Examples from what was told so far.
    pub fn exemplars(&self) -> Arc<Exemplars> {
        self.exemplars.clone()
    }

    /// These spans will never be found: no example names them from now on. True if one did.
    pub fn forget_examples(&mut self, spans: &HashSet<[u8; 8]>) -> bool {
        let names_any = !spans.is_empty() && self.exemplars.name_any(spans);
        if names_any {
            Arc::make_mut(&mut self.exemplars).forget(spans);
        }
        names_any
    }
}

/// What is told of something whose end was seen is an example of it. `measured`: runs of the session are.
pub(super) fn take(
    exemplars: &mut Arc<Exemplars>,
    source: &SourceId,
    what: &What,
    measured: bool,
    told: &Outgoing,
) {
    let Outgoing::Span(span) = told else { return };
    if !exemplars.is_wanted() {
        return;
    }
    let (observation, since) = match what {
        // The fold measures runs that ended as turns do.
        What::Run { since, end, .. } if measured => match end.outcome {
            Ended::Turn(outcome) => (Observation::Turn(outcome), *since),
            _ => return,
        },
        // It may have begun in a run before.
        What::Step { step, since, .. } => (Observation::Step(step.kind), since.unwrap_or(span.start)),
        What::Call { class, since, .. } => (Observation::Call(*class), *since),
        What::Wait { kind, since, .. } => (Observation::Wait(*kind), *since),
        _ => return,
    };
    let Ok(ms) = u64::try_from(span.end.since(since)) else { return };
    let exemplar = Exemplar { trace: span.context.trace.0, span: span.context.span.0, ms, at: span.end };
    Arc::make_mut(exemplars).take(source, observation, exemplar);
}
