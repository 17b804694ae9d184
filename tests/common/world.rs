//! Hand-made snapshots: events are folded as the owner task would, at moments given in seconds.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use agent_session_exporter::event::{Capabilities, Event, Fact, Id, Name, SessionId, SourceId, Timestamp};
use agent_session_exporter::session::snapshot::Tree;
use agent_session_exporter::session::{Aggregates, Effects, Facts, Snapshot};

/// Second 0 of every world.
pub(crate) const EPOCH_MS: i64 = 1_795_960_000_000;

/// The moment so many seconds into the world.
pub(crate) fn at(seconds: f64) -> Timestamp {
    Timestamp::from_millis(EPOCH_MS + (seconds * 1000.0).round() as i64)
}

#[derive(Default)]
pub(crate) struct World {
    sessions: BTreeMap<(SourceId, SessionId), Facts>,
    pub(crate) aggregates: Aggregates,
    capabilities: HashMap<SourceId, Capabilities>,
}

/// One session of a world, to tell its story in a row.
pub(crate) struct Story<'a> {
    world: &'a mut World,
    source: SourceId,
    session: SessionId,
    parent: Option<SessionId>,
    project: Option<Name>,
    request: Option<Id>,
}

impl World {
    /// Says what a source can see by default.
    pub(crate) fn sees(&mut self, source: &str, capabilities: Capabilities) {
        self.capabilities.insert(SourceId::from(source), capabilities);
    }

    pub(crate) fn story(&mut self, source: &str, session: &str, project: Option<&str>) -> Story<'_> {
        Story {
            world: self,
            source: SourceId::from(source),
            session: SessionId::from(session),
            parent: None,
            project: project.map(Name::from),
            request: None,
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let sessions: Vec<_> = self.sessions.values().map(|f| Some(Arc::new(f.clone()))).collect();
        Snapshot {
            tree: Arc::new(Tree::of(&sessions)),
            sessions,
            aggregates: Arc::new(self.aggregates.clone()),
            capabilities: Arc::new(self.capabilities.clone()),
            ..Snapshot::default()
        }
    }
}

impl Story<'_> {
    pub(crate) fn child_of(mut self, parent: &str) -> Self {
        self.parent = Some(SessionId::from(parent));
        self
    }

    /// Everything from here on belongs to this turn.
    pub(crate) fn turn(mut self, request: &str) -> Self {
        self.request = Some(Id::from(request));
        self
    }

    pub(crate) fn then(self, seconds: f64, fact: Fact) -> Self {
        self.then_at(Some(at(seconds)), fact)
    }

    pub(crate) fn then_at(self, time: Option<Timestamp>, fact: Fact) -> Self {
        let observed = time.unwrap_or_else(|| at(0.0));
        let mut event = Event::new(&self.source, &self.session, observed, fact);
        event.time = time;
        event.parent.clone_from(&self.parent);
        event.project.clone_from(&self.project);
        event.request.clone_from(&self.request);
        let key = (self.source.clone(), self.session.clone());
        let new = || Facts::new(self.source.clone(), self.session.clone(), observed);
        let facts = self.world.sessions.entry(key).or_insert_with(new);
        let mut effects = Effects::default();
        facts.apply(&event, &mut effects);
        for name in [&facts.info.model, &facts.info.provider].into_iter().flatten() {
            self.world.aggregates.admit_model(name);
        }
        self.world.aggregates.project_label(facts.project.as_ref());
        effects.project.clone_from(&facts.project);
        effects.root = facts.parent.is_none() && !facts.is_orchestrated();
        self.world.aggregates.add(&self.source, &effects);
        self
    }
}
