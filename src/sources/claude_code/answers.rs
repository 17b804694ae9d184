//! Lines of the model's side: one line a block of an answer, each with the whole usage of its message.

use super::state::Message as Remembered;
use super::stream::Ended;
use super::wire::{Content, Line, Tokens, count, flag, read, text, word};
use super::{Claude, Emit};
use crate::event::{ActivityClass, ErrorClass, Event, Fact, Name, SessionInfo, TurnOutcome, Usage};
use crate::sources::files::Claim;

/// Model name of messages that the program wrote itself.
const SYNTHETIC: &str = "<synthetic>";

// === impl Claude ===

impl Claude {
    /// A line of the model's side.
    pub(super) fn assistant(&mut self, e: &mut Emit<'_>, at: usize, line: &Line<'_>) {
        let message = &line.message;
        let name = text(message.id).or_else(|| text(line.uuid)).unwrap_or_default();
        let id = self.hash(&name);
        let Remembered { key, copied, taken, .. } = match self.state.lanes[at].message(id) {
            Some(known) => known,
            None => {
                let key = self.key("message", &name, e.time);
                let claim = self.claim(at, key);
                let (copied, taken) = (claim == Claim::Copied, claim == Claim::Taken);
                let new = Remembered { id, key, copied, taken };
                self.state.lanes[at].remember(new);
                new
            }
        };
        e.taken = taken;
        let model = text(message.model).filter(|model| model != SYNTHETIC);
        let model = model.map(|model| self.name(&model));
        if copied {
            return self.spend(e, at, key, &message.usage, model.as_ref());
        }
        self.describe(e, at, line);
        if self.state.lanes[at].ending.is_some_and(|(ending, _)| ending != id) {
            self.settle(e, at);
        }
        if flag(line.is_api_error) {
            let error = Some(failure(line));
            return self.close_turn(e, at, e.time, &Ended { error, ..Ended::as_known(TurnOutcome::Failed) });
        }
        let ended = self.state.lanes[at].ended == id;
        let lane = &self.state.lanes[at];
        // What the program says itself begins nothing.
        if model.is_some() && lane.turn.is_none() && !ended && (!lane.left || lane.command.is_some()) {
            self.resume_turn(e, at);
        }
        if let Some(turn) = &mut self.state.lanes[at].turn {
            turn.worked = true;
        }
        if model.is_some() && self.state.lanes[at].model != model {
            self.state.lanes[at].model.clone_from(&model);
            self.push(
                e,
                at,
                Fact::SessionUpdated(SessionInfo { model: model.clone(), ..SessionInfo::default() }),
            );
        }
        let says = self.blocks(e, at, &message.content);
        self.spend(e, at, key, &message.usage, model.as_ref());
        if !ended {
            let stop = text(message.stop_reason).filter(|_| model.is_some());
            let whole =
                self.is_whole(at, message.stop_details.is_there(), count(message.usage.output_tokens));
            self.stopped(e, at, id, stop.as_deref(), says && whole);
        }
    }

    /// The blocks of a line; whether there is a text among them.
    fn blocks(&mut self, e: &mut Emit<'_>, at: usize, content: &Content<'_>) -> bool {
        let mut says = text(content.raw).is_some();
        let mut works = content.blocks.is_empty();
        for block in &content.blocks {
            match word(block.kind).as_ref() {
                "tool_use" => self.call(e, at, block),
                "text" => says = true,
                _ => works = true,
            }
        }
        if says || works {
            self.push(e, at, Fact::Activity { class: ActivityClass::Work, message: says });
        }
        self.state.lanes[at].message_last = says;
        says
    }

    /// Whether the message came to its end: one whose stream was cut has a made-up reason, but no details of it, and the
    /// usage of its beginning.
    fn is_whole(&mut self, at: usize, has: bool, output: u64) -> bool {
        let lane = &mut self.state.lanes[at];
        lane.details |= has;
        has || !lane.details || output > 1
    }

    /// Why the message stopped, where it says so. A message is written block by block, and each says it.
    fn stopped(&mut self, e: &mut Emit<'_>, at: usize, id: u64, stop: Option<&str>, says: bool) {
        let outcome = match stop {
            Some("end_turn" | "stop_sequence" | "refusal") => TurnOutcome::Completed,
            Some("max_tokens" | "model_context_window_exceeded") => TurnOutcome::Truncated,
            _ => return,
        };
        if says || outcome == TurnOutcome::Truncated {
            self.close_turn(e, at, e.time, &Ended::as_known(outcome));
            self.state.lanes[at].ended = id;
        } else {
            // A thought, or a stream that may have been cut: the rest follows, or something that shows there is none.
            self.state.lanes[at].ending = Some((id, e.time));
        }
    }

    /// Tokens of a message, told to the session that owns it.
    fn spend(&mut self, e: &mut Emit<'_>, at: usize, key: u64, usage: &Tokens<'_>, model: Option<&Name>) {
        let Some(model) = model else { return };
        let said = [
            count(usage.input_tokens),
            count(usage.cache_read_input_tokens),
            count(usage.cache_creation_input_tokens),
            count(usage.output_tokens),
        ];
        for spent in self.owners.spend(key, said) {
            let [input, cache_read, cache_write, output] = spent.tokens;
            let usage = Usage {
                model: Some(model.clone()),
                input,
                cache_read,
                cache_write,
                output,
                ..Usage::default()
            };
            let mut event = Event::new(&self.source, &spent.session, e.observed, Fact::Usage(usage));
            let id = format!("usage:{key:016x}:{:?}:{}", spent.total, spent.counting.as_str());
            event.id = Some(self.reducer.event_id(&self.source, spent.session.as_str(), &id));
            event.time = e.time;
            event.counting = spent.counting;
            let lane = &self.state.lanes[at];
            if lane.session == spent.session {
                event.parent.clone_from(&lane.parent);
                event.project.clone_from(&lane.project);
            }
            e.out.push(event);
        }
    }
}

/// What kind of error ended a turn. Status and words are the program's; the text is not looked at.
fn failure(line: &Line<'_>) -> ErrorClass {
    match word(line.error).as_ref() {
        "rate_limit" => return ErrorClass::RateLimit,
        "authentication_failed"
        | "oauth_org_not_allowed"
        | "verification_required"
        | "cloud_credential_error" => {
            return ErrorClass::Auth;
        }
        "billing_error" | "account_on_hold" => return ErrorClass::Billing,
        "overloaded" | "server_error" => return ErrorClass::Server,
        "invalid_request" => return ErrorClass::InvalidRequest,
        "model_not_found" => return ErrorClass::ModelMissing,
        "max_output_tokens" => return ErrorClass::ContextOverflow,
        _ => {}
    }
    read::<f64>(line.api_error_status).map_or(ErrorClass::Other, of_status)
}

/// The class of an HTTP status.
pub(super) fn of_status(status: f64) -> ErrorClass {
    match status as u16 {
        400 | 413 | 422 => ErrorClass::InvalidRequest,
        401 | 403 => ErrorClass::Auth,
        402 => ErrorClass::Billing,
        404 => ErrorClass::ModelMissing,
        408 | 504 => ErrorClass::Timeout,
        429 => ErrorClass::RateLimit,
        500..=599 => ErrorClass::Server,
        _ => ErrorClass::Other,
    }
}
