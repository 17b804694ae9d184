//! What the agents of an orchestrator tell of their own turns and calls, as parts of the attempt that they work on. They
//! name their spec and nothing else, so that what is told belongs to the attempt at it that is open.

use serde::{Deserialize, Serialize};

use super::{Began, SpecStory, Story, Teller};
use crate::event::{AgentNews, CallOutcome, EndOutcome, ErrorClass, Id, Name, ToolClass};
use crate::session::notes::{Part, PartEnd, What};

/// Calls of one turn that are followed at once.
const MAX_CALLS: usize = 64;

/// A turn that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct AgentTurn {
    part: Part,
    began: Began,
    calls: Vec<AgentCall>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct AgentCall {
    call: Id,
    tool: Name,
    class: ToolClass,
    began: Began,
}

// === impl Story ===

impl Story {
    /// The agent of a spec began a turn.
    pub(in super::super) fn turn_began(&mut self, spec: &Name, to: &mut Teller<'_>) {
        let Some(at) = self.spec_at(spec) else { return };
        let unknown = PartEnd { outcome: EndOutcome::Unknown, error: None };
        let whats = self.specs[at].turn_over(unknown, None, to);
        whats.into_iter().for_each(|what| self.tell(to.at, what, to.out));
        let own = &mut self.specs[at];
        let Some((attempt, _)) = own.attempt else { return };
        own.turns = own.turns.saturating_add(1);
        let part = Part::Turn {
            spec: own.name.clone(),
            batch: own.batch,
            attempt,
            number: own.turns,
            thread: own.thread.clone(),
        };
        own.turn = Some(AgentTurn { part, began: to.began(), calls: Vec::new() });
    }

    /// The agent of a spec tells what it does.
    pub(in super::super) fn agent_tells(&mut self, spec: &Name, news: &AgentNews, to: &mut Teller<'_>) {
        let Some(at) = self.spec_at(spec) else { return };
        let own = &mut self.specs[at];
        let whats = match news {
            AgentNews::TurnEnded { failed, usage } => {
                let (outcome, error) = match failed {
                    true => (EndOutcome::Failed, Some(ErrorClass::Other)),
                    false => (EndOutcome::Completed, None),
                };
                own.turn_over(PartEnd { outcome, error }, *usage, to)
            }
            AgentNews::CallStarted { call, tool, class } => {
                if let Some(turn) = own.turn.as_mut().filter(|turn| turn.calls.len() < MAX_CALLS) {
                    let (call, tool) = (call.clone(), tool.clone());
                    turn.calls.push(AgentCall { call, tool, class: *class, began: to.began() });
                }
                Vec::new()
            }
            AgentNews::CallEnded { call, tool, class, outcome, exit_code } => {
                let Some(turn) = own.turn.as_mut() else { return };
                let open = turn.calls.iter().position(|known| known.call == *call);
                // Of what is told of at its end only, that is all that is known of its time.
                let found = open.map(|open| turn.calls.remove(open)).unwrap_or_else(|| AgentCall {
                    call: call.clone(),
                    tool: tool.clone(),
                    class: *class,
                    began: Began { since: to.at, polled: true },
                });
                vec![found.over(&turn.part, *outcome, *exit_code, to)]
            }
        };
        whats.into_iter().for_each(|what| self.tell(to.at, what, to.out));
    }

    fn spec_at(&self, spec: &Name) -> Option<usize> {
        self.specs.binary_search_by(|known| known.name.cmp(spec)).ok()
    }
}

// === impl SpecStory ===

impl SpecStory {
    /// The open turn is over, and with it what is open in it.
    pub(super) fn turn_over(&mut self, end: PartEnd, usage: Option<[u64; 3]>, to: &Teller<'_>) -> Vec<What> {
        let Some(AgentTurn { part, began, calls }) = self.turn.take() else { return Vec::new() };
        let over = |call: AgentCall| call.over(&part, CallOutcome::Unknown, None, to);
        let mut whats: Vec<What> = calls.into_iter().map(over).collect();
        // Of what was received without a time of its own, either time makes the stretch one of receipt.
        let polled = began.polled || to.polled;
        whats.push(What::AgentTurn { turn: part, since: began.since, end, usage, polled });
        whats
    }
}

// === impl AgentCall ===

impl AgentCall {
    fn over(self, turn: &Part, outcome: CallOutcome, exit_code: Option<i32>, to: &Teller<'_>) -> What {
        What::AgentCall {
            turn: turn.clone(),
            call: self.call,
            tool: self.tool,
            class: self.class,
            since: self.began.since,
            outcome,
            exit_code,
            polled: self.began.polled || to.polled,
        }
    }
}
