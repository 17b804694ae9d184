//! What a type and its `data` mean. The rule for words of closed sets: an unknown word becomes the set's `other`
//! or `unknown` where it has one, else the item is refused; nothing is guessed.

use super::calls;
use super::names::Interner;
use super::names::bounded;
use super::refuse::Reason;
use super::wire::Data;
use super::wire::Field;
use crate::event::ActionKind;
use crate::event::ActivityClass;
use crate::event::BlockReason;
use crate::event::CallEnd;
use crate::event::CallOutcome;
use crate::event::CallStart;
use crate::event::Certainty;
use crate::event::EndOutcome;
use crate::event::ErrorClass;
use crate::event::Evidence;
use crate::event::Fact;
use crate::event::Id;
use crate::event::Mode;
use crate::event::Name;
use crate::event::Phase;
use crate::event::ProgressKind;
use crate::event::Reducer;
use crate::event::Requester;
use crate::event::Resolution;
use crate::event::SessionId;
use crate::event::SessionInfo;
use crate::event::Step;
use crate::event::StepKind;
use crate::event::StepOutcome;
use crate::event::Tally;
use crate::event::ToolClass;
use crate::event::Trigger;
use crate::event::TurnOutcome;
use crate::event::Usage;
use crate::sources::arguments;
use crate::sources::arguments::Memory;

/// Longest link that is kept, in bytes.
const MAX_URL: usize = 2_000;
/// What an unnamed detector or layer is called.
const UNNAMED: &str = "other";

/// What reading a fact needs besides the data.
pub(super) struct Reading<'r> {
    pub(super) reducer: &'r Reducer,
    pub(super) names: &'r mut Interner,
    pub(super) memory: &'r mut Memory,
    pub(super) notes: Notes,
}

/// What was left out of an item that was taken all the same.
#[derive(Default)]
pub(super) struct Notes {
    /// Numbers that cannot be counts.
    pub(super) dropped: u64,
    /// A word this version does not know.
    pub(super) unknown: Option<&'static str>,
}

// === impl Reading ===

impl Reading<'_> {
    /// The fact of this type; `None` for a type this version does not know.
    pub(super) fn fact(&mut self, kind: &str, d: &Data<'_>) -> Result<Option<Fact>, Reason> {
        let fact = match kind {
            "tool.started" => Fact::ToolStarted(self.call_start(d)?),
            "tool.ended" => Fact::ToolEnded(self.call_end(d)?),
            "usage" => Fact::Usage(self.usage(d)?),
            "activity" => Fact::Activity {
                class: or_refuse(d, Field::Class, ActivityClass::parse)?.unwrap_or(ActivityClass::Work),
                message: d.flag(Field::Message)?.unwrap_or(false),
            },
            "progress" => {
                let progress = required(or_refuse(d, Field::Kind, ProgressKind::parse)?)?;
                self.progress(progress, d)?
            }
            "test.passed" => self.progress(ProgressKind::TestPassed, d)?,
            "test.failed" => self.progress(ProgressKind::TestFailed, d)?,
            "build.succeeded" => self.progress(ProgressKind::BuildSucceeded, d)?,
            "build.failed" => self.progress(ProgressKind::BuildFailed, d)?,
            "task.started" => self.progress(ProgressKind::TaskStarted, d)?,
            "task.completed" => self.progress(ProgressKind::TaskCompleted, d)?,
            "verification.passed" => Fact::Verification { passed: true, call: self.id(d, Field::CallId)? },
            "verification.failed" => Fact::Verification { passed: false, call: self.id(d, Field::CallId)? },
            "turn.started" => Fact::TurnStarted {
                trigger: word(d, Field::Trigger, Trigger::parse, Trigger::Unknown)?
                    .unwrap_or(Trigger::Unknown),
            },
            "turn.ended" => Fact::TurnEnded {
                outcome: required(or_refuse(d, Field::Outcome, TurnOutcome::parse)?)?,
                error: error_class(d)?,
                reset: d.moment(Field::ResetAt)?,
                denied: d.flag(Field::Denied)?.unwrap_or(false),
                result_known: true,
            },
            "session.queued" => Fact::SessionQueued(self.info(d)?),
            "session.started" => Fact::SessionStarted(self.info(d)?),
            "session.resumed" => Fact::SessionResumed(self.info(d)?),
            "session.updated" => Fact::SessionUpdated(self.info(d)?),
            "session.ended" => Fact::SessionEnded {
                outcome: word(d, Field::Outcome, EndOutcome::parse, EndOutcome::Unknown)?
                    .unwrap_or(EndOutcome::Unknown),
                error: error_class(d)?,
                workflow: d.flag(Field::Workflow)?.unwrap_or(false),
            },
            "session.deleted" => Fact::SessionDeleted,
            "workflow.step.started" => Fact::StepStarted(self.step(d)?),
            "workflow.step.completed" => Fact::StepCompleted {
                outcome: required(or_refuse(d, Field::Outcome, StepOutcome::parse)?)?,
                step: self.step(d)?,
            },
            "plan.ready" => {
                Fact::PlanUpdated { ready: true, items: tally(d, Field::Completed)?, told: false }
            }
            "plan.updated" => {
                Fact::PlanUpdated { ready: false, items: tally(d, Field::Completed)?, told: false }
            }
            "criteria.updated" => Fact::CriteriaUpdated(tally(d, Field::Passed)?),
            "user.action_required" => Fact::ActionRequired {
                action: required(self.id(d, Field::ActionId)?)?,
                kind: word(d, Field::Kind, ActionKind::parse, ActionKind::Other)?
                    .unwrap_or(ActionKind::Other),
                certainty: or_refuse(d, Field::Certainty, Certainty::parse)?.unwrap_or(Certainty::Certain),
                tool: self.name(d, Field::Tool)?,
                call: self.id(d, Field::CallId)?,
            },
            "user.action_resolved" => Fact::ActionResolved {
                action: required(self.id(d, Field::ActionId)?)?,
                resolution: word(d, Field::Resolution, Resolution::parse, Resolution::Unknown)?
                    .unwrap_or(Resolution::Unknown),
            },
            "user.prompt" => Fact::Prompt {
                // The type's own name says who prompts, unless the sender knows better.
                trigger: word(d, Field::Trigger, Trigger::parse, Trigger::Unknown)?
                    .unwrap_or(Trigger::Person),
                queued: d.flag(Field::Queued)?.unwrap_or(false),
            },
            "session.blocked" => Fact::Blocked {
                reason: required(or_refuse(d, Field::Reason, BlockReason::parse)?)?,
                attempt: d.small(Field::Attempt)?,
                delay_ms: d.count(Field::DelayMs)?,
                until: d.moment(Field::Until)?,
            },
            "session.unblocked" => Fact::Unblocked,
            "error" => Fact::Error {
                class: error_class(d)?.unwrap_or(ErrorClass::Other),
                recoverable: d.flag(Field::Recoverable)?.unwrap_or(true),
            },
            "stop.requested" => Fact::StopRequested {
                requester: word(d, Field::Requester, Requester::parse, Requester::Unknown)?
                    .unwrap_or(Requester::Unknown),
            },
            "stop.acknowledged" => Fact::StopAcknowledged,
            "stop.cleared" => Fact::StopCleared,
            "native_stuck" => Fact::NativeStuck {
                detector: self.name(d, Field::Detector)?.unwrap_or_else(|| Name::from(UNNAMED)),
                layer: self.name(d, Field::Layer)?.unwrap_or_else(|| Name::from(UNNAMED)),
            },
            _ => return self.orchestrator(kind, d),
        };
        Ok(Some(fact))
    }

    fn call_start(&mut self, d: &Data<'_>) -> Result<CallStart, Reason> {
        let call = required(self.id(d, Field::CallId)?)?;
        let tool = required(self.name(d, Field::Tool)?)?;
        let class = word(d, Field::ToolClass, ToolClass::parse, ToolClass::Other)?
            .unwrap_or_else(|| ToolClass::of_tool(tool.as_str()));
        let target = d.text(Field::Target)?;
        let reduced = arguments::reduce(
            self.reducer,
            self.memory,
            tool.as_str(),
            class,
            d.args.map(serde_json::value::RawValue::get),
            target,
        )?;
        Ok(CallStart {
            call,
            tool,
            class,
            key: reduced.key,
            target: reduced.target,
            read: calls::read_range(d.read_range)?,
            commands: reduced.commands,
            background: d.flag(Field::Background)?.unwrap_or(false),
            asks: d.flag(Field::Asks)?,
            nested: d.flag(Field::Nested)?.unwrap_or(false),
        })
    }

    fn call_end(&mut self, d: &Data<'_>) -> Result<CallEnd, Reason> {
        let tool = d.text(Field::Tool)?.unwrap_or_default();
        Ok(CallEnd {
            call: required(self.id(d, Field::CallId)?)?,
            outcome: required(or_refuse(d, Field::Outcome, CallOutcome::parse)?)?,
            exit_code: d.signed(Field::ExitCode)?.map(|n| n as i32),
            diff_lines: d.small(Field::DiffLines)?,
            error: d.text(Field::Error)?.map(|text| self.reducer.error_fingerprint(tool, text)),
            output: d.text(Field::OutputDigest)?.map(|text| self.reducer.hash(text.as_bytes())),
            read: calls::read_range(d.read_range)?,
        })
    }

    fn progress(&mut self, kind: ProgressKind, d: &Data<'_>) -> Result<Fact, Reason> {
        let subject = match d.text(Field::TaskId)? {
            Some(task) => Some(task),
            None => d.text(Field::Subject)?,
        };
        Ok(Fact::Progress {
            kind,
            evidence: or_refuse(d, Field::Evidence, Evidence::parse)?.unwrap_or(Evidence::Declared),
            call: self.id(d, Field::CallId)?,
            subject: subject.map(|text| self.reducer.hash(text.as_bytes())),
        })
    }

    fn usage(&mut self, d: &Data<'_>) -> Result<Usage, Reason> {
        Ok(Usage {
            model: self.name(d, Field::Model)?,
            provider: self.name(d, Field::Provider)?,
            response: self.id(d, Field::ResponseId)?,
            input: d.count(Field::Input)?.unwrap_or(0),
            cache_read: d.count(Field::CacheRead)?.unwrap_or(0),
            cache_write: d.count(Field::CacheWrite)?.unwrap_or(0),
            output: d.count(Field::Output)?.unwrap_or(0),
            cost_usd: d.number(Field::CostUsd)?,
            context_used: d.number(Field::ContextUsed)?.filter(|share| *share <= 1.0),
        })
    }

    fn info(&mut self, d: &Data<'_>) -> Result<SessionInfo, Reason> {
        let mode = |text: &str| match text {
            "planner" => Some(Mode::Plan),
            "builder" => Some(Mode::Build),
            "verifier" => Some(Mode::Verify),
            text => Mode::parse(text),
        };
        Ok(SessionInfo {
            agent: self.name(d, Field::Agent)?,
            version: self.name(d, Field::AgentVersion)?,
            originator: self.name(d, Field::Originator)?,
            mode: word(d, Field::Mode, mode, Mode::Other)?,
            phase: word(d, Field::Phase, Phase::parse, Phase::Other)?,
            model: self.name(d, Field::Model)?,
            provider: self.name(d, Field::Provider)?,
            read_only: d.flag(Field::ReadOnly)?,
            interactive: d.flag(Field::Interactive)?,
            url: d.text(Field::Url)?.filter(|url| is_link(url)).map(Name::from),
            capabilities: None,
            forked_from: d.text(Field::ForkedFrom)?.map(|t| SessionId(self.names.get(t, self.reducer))),
            endpoint: None,
        })
    }

    fn step(&mut self, d: &Data<'_>) -> Result<Step, Reason> {
        Ok(Step {
            id: required(self.id(d, Field::StepId)?)?,
            kind: word(d, Field::Kind, StepKind::parse, StepKind::Other)?.unwrap_or(StepKind::Other),
            name: self.name(d, Field::Name)?,
            index: d.small(Field::Index)?,
            total: d.small(Field::Total)?,
            entry: d.small(Field::Entry)?,
        })
    }

    fn id(&self, d: &Data<'_>, field: Field) -> Result<Option<Id>, Reason> {
        Ok(d.text(field)?.map(|text| Id(bounded(text, self.reducer))))
    }

    fn name(&mut self, d: &Data<'_>, field: Field) -> Result<Option<Name>, Reason> {
        Ok(d.text(field)?.map(|text| Name(self.names.get(text, self.reducer))))
    }
}

pub(super) fn required<T>(value: Option<T>) -> Result<T, Reason> {
    value.ok_or(Reason::MissingField)
}

/// A word of a set that has a place for unknown ones.
pub(super) fn word<T>(
    d: &Data<'_>,
    field: Field,
    parse: impl Fn(&str) -> Option<T>,
    unknown: T,
) -> Result<Option<T>, Reason> {
    Ok(d.text(field)?.map(|text| parse(text).unwrap_or(unknown)))
}

/// A word of a set that has none.
fn or_refuse<T>(d: &Data<'_>, field: Field, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, Reason> {
    d.text(field)?.map(|text| parse(text).ok_or(Reason::BadValue)).transpose()
}

fn error_class(d: &Data<'_>) -> Result<Option<ErrorClass>, Reason> {
    word(d, Field::ErrorClass, ErrorClass::parse, ErrorClass::Other)
}

fn tally(d: &Data<'_>, done: Field) -> Result<Tally, Reason> {
    Ok(Tally {
        pending: d.small(Field::Pending)?.unwrap_or(0),
        in_progress: d.small(Field::InProgress)?.unwrap_or(0),
        done: d.small(done)?.unwrap_or(0),
        failed: d.small(Field::Failed)?.unwrap_or(0),
    })
}

/// Whether a text may be shown as a link: http(s), bounded, printable, and without a password in front of the host.
fn is_link(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    url.len() <= MAX_URL
        && url.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'<' | b'>' | b'\\' | b'`'))
        && !authority.is_empty()
        && !authority.contains('@')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_web_addresses_without_secrets() {
        assert!(is_link("http://127.0.0.1:4096/session/1?x=y"));
        for bad in [
            "javascript:alert(1)",
            "file:///etc/passwd",
            "http://",
            "https://user:secret@host/",
            "https://host/\"><script>",
            "https://host/a b",
            &format!("https://host/{}", "x".repeat(MAX_URL)),
        ] {
            assert!(!is_link(bad), "{bad}");
        }
    }
}
