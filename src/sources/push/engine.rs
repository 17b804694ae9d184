//! What orchestrators and the agents they start tell: the schema's own types, and the records of the
//! scene-capability-engine, of its spawner and of its agents as they are, one in `data` of each item. Which orchestration
//! a record belongs to stands in none of them: `sessionId` of the item says it.
//!
//! Format: events `batch:*`, `spec:*`, `launch:*`, `parallel:*`, `rate-limit:*`, `orchestration:*` and `agent:*` of
//! <https://github.com/heguangyong/scene-capability-engine>, 3.0.0 and 3.6.65, and the JSON Lines of
//! `codex exec --json`. Agents' ids are slots that are used again, so nothing is ever joined by them.

use serde_json::Value;

use super::facts::Reading;
use super::facts::required;
use super::facts::word;
use super::names::bounded;
use super::refuse::Reason;
use super::wire::Data;
use super::wire::Field;
use crate::event::ActivityClass;
use crate::event::AgentNews;
use crate::event::AgentWork;
use crate::event::CallOutcome;
use crate::event::ErrorClass;
use crate::event::Fact;
use crate::event::Id;
use crate::event::LaunchUpdate;
use crate::event::LimitClass;
use crate::event::LimitUpdate;
use crate::event::Name;
use crate::event::OrchestrationState;
use crate::event::OrchestrationUpdate;
use crate::event::ParallelChange;
use crate::event::ParallelUpdate;
use crate::event::SpecStatus;
use crate::event::SpecUpdate;
use crate::event::ThrottleReason;
use crate::event::ToolClass;
use crate::sources::orchestrator::error_class;

/// Specs that one record may tell of.
const MAX_SPECS: usize = 512;

/// Items of agents' lines that are calls.
const ITEMS: [(&str, ToolClass); 5] = [
    ("command_execution", ToolClass::Shell),
    ("file_change", ToolClass::Edit),
    ("mcp_tool_call", ToolClass::Mcp),
    ("web_search", ToolClass::Search),
    ("collab_tool_call", ToolClass::Task),
];

const fn activity(class: ActivityClass) -> Fact {
    Fact::Activity { class, message: false }
}

fn small(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

// === impl Reading ===

impl Reading<'_> {
    /// The fact of one of the schema's own types for orchestrators; `None` for any other type.
    pub(super) fn orchestrator(&mut self, kind: &str, d: &Data<'_>) -> Result<Option<Fact>, Reason> {
        let fact = match kind {
            "orchestration.updated" => Fact::Orchestration(Box::new(OrchestrationUpdate {
                state: self.known_word(d, Field::State, OrchestrationState::parse, "orchestration_status")?,
                started: d.moment(Field::StartedAt)?,
                ended: d.moment(Field::EndedAt)?,
                batch: self.amount(d, Field::Batch)?.map(small).filter(|n| *n > 0),
                batches: self.amount(d, Field::Batches)?.map(small),
                ..OrchestrationUpdate::default()
            })),
            "spec.updated" => {
                let mut update = SpecUpdate::of(required(self.spec_name(d, Field::Spec)?)?);
                update.status = self.known_word(d, Field::Status, SpecStatus::parse, "spec_status")?;
                update.batch = self.amount(d, Field::Batch)?.map(small).filter(|n| *n > 0);
                update.retries = self.amount(d, Field::RetryCount)?.map(small);
                update.error = word(d, Field::ErrorClass, ErrorClass::parse, ErrorClass::Other)?;
                Fact::Spec(Box::new(update))
            }
            "rate_limit.signal" => match self.spec_name(d, Field::Spec)? {
                None => Fact::RateLimitSignal { delay_ms: d.count(Field::DelayMs)? },
                spec => Fact::SpecLimited(Box::new(LimitUpdate {
                    spec,
                    delay_ms: self.amount(d, Field::DelayMs)?,
                    hold_ms: self.amount(d, Field::LaunchHoldMs)?,
                    class: word(d, Field::Class, LimitClass::parse, LimitClass::Other)?,
                    ..LimitUpdate::default()
                })),
            },
            "launch_budget.updated" => {
                let hold_ms = self.amount(d, Field::HoldMs)?;
                Fact::LaunchBudget(LaunchUpdate {
                    budget: self.amount(d, Field::BudgetPerMinute)?,
                    window_ms: self.amount(d, Field::WindowMs)?,
                    used: self.amount(d, Field::Used)?,
                    hold_ms,
                    hold_at: None,
                    held: hold_ms.is_some_and(|ms| ms > 0),
                })
            }
            "parallel.updated" => Fact::Parallel(ParallelUpdate {
                adaptive: d.flag(Field::Adaptive)?,
                max: self.amount(d, Field::Max)?,
                effective: self.amount(d, Field::Effective)?,
                floor: self.amount(d, Field::Floor)?,
                reason: d.text(Field::Reason)?.map(throttle_reason),
                ..ParallelUpdate::default()
            }),
            "orchestrator.event" => return self.engine_event(d),
            "orchestrator.codex" => return self.codex_event(d),
            _ => return Ok(None),
        };
        Ok(Some(fact))
    }

    /// A record of the engine or its spawner.
    fn engine_event(&mut self, d: &Data<'_>) -> Result<Option<Fact>, Reason> {
        let name: Value = parsed(required(d.event)?.get())?;
        let name = name.as_str().ok_or(Reason::BadValue)?;
        let data: Value = d.inner.map_or(Ok(Value::Null), |raw| parsed(raw.get()))?;
        if !matches!(data, Value::Object(_) | Value::Null) {
            return Err(Reason::BadValue);
        }
        let spec = |this: &Self| required(this.name_of(data.get("specName")));
        let fact = match name {
            "batch:start" => {
                let batch = required(self.count(&data, "batch"))?;
                let specs =
                    self.specs(data.get("specs"), SpecStatus::Pending, Some(small(batch).saturating_add(1)));
                Fact::Orchestration(Box::new(OrchestrationUpdate {
                    state: Some(OrchestrationState::Running),
                    batch: Some(small(batch).saturating_add(1)),
                    begins: batch == 0,
                    specs,
                    ..OrchestrationUpdate::default()
                }))
            }
            "batch:complete" => {
                let batch = Some(small(required(self.count(&data, "batch"))?).saturating_add(1));
                let mut update = OrchestrationUpdate { batch_done: batch, ..OrchestrationUpdate::default() };
                self.results(&data, batch, &mut update.specs);
                Fact::Orchestration(Box::new(update))
            }
            "orchestration:complete" => {
                let word = data.get("status").and_then(Value::as_str);
                let mut update = OrchestrationUpdate {
                    state: word.and_then(OrchestrationState::parse),
                    ended: d.moment(Field::At)?,
                    ..OrchestrationUpdate::default()
                };
                self.results(&data, None, &mut update.specs);
                let batches = data.get("plan").and_then(|plan| plan.get("batches")?.as_array());
                update.batches = batches.filter(|b| !b.is_empty()).map(|b| small(b.len() as u64));
                for (batch, names) in
                    batches.into_iter().flatten().zip(1..).take(MAX_SPECS).map(|(b, n)| (n, b))
                {
                    let own = |s: &SpecUpdate| {
                        names
                            .as_array()
                            .is_some_and(|l| l.iter().any(|n| n.as_str() == Some(s.spec.as_str())))
                    };
                    update.specs.iter_mut().filter(|s| own(s)).for_each(|s| s.batch = Some(batch));
                }
                Fact::Orchestration(Box::new(update))
            }
            "spec:start" => {
                let mut update = SpecUpdate::of(spec(self)?).with(SpecStatus::Running);
                update.attempt = true;
                Fact::Spec(Box::new(update))
            }
            "spec:complete" => Fact::Spec(Box::new(SpecUpdate::of(spec(self)?).with(SpecStatus::Completed))),
            "spec:failed" => {
                let mut update = SpecUpdate::of(spec(self)?).with(SpecStatus::Failed);
                update.retries = self.count(&data, "retryCount").map(small);
                update.error =
                    Some(data.get("error").and_then(Value::as_str).map_or(ErrorClass::Other, error_class));
                Fact::Spec(Box::new(update))
            }
            "spec:rate-limited" => Fact::SpecLimited(Box::new(LimitUpdate {
                spec: Some(spec(self)?),
                retry: self.count(&data, "retryCount").map(small),
                delay_ms: self.count(&data, "retryDelayMs"),
                hold_ms: self.count(&data, "launchHoldMs"),
                waits: true,
                ..LimitUpdate::default()
            })),
            "spec:rate-limit-exhausted" => {
                let mut update = SpecUpdate::of(spec(self)?);
                update.retries = self.count(&data, "retryCount").map(small);
                update.error = Some(ErrorClass::RateLimit);
                Fact::Spec(Box::new(update))
            }
            "launch:budget-hold" | "launch:budget-throttled" | "launch:budget-recovered" => {
                Fact::LaunchBudget(LaunchUpdate {
                    budget: self.count(&data, "budgetPerMinute"),
                    window_ms: self.count(&data, "windowMs"),
                    used: self.count(&data, "used"),
                    hold_ms: self.count(&data, "holdMs"),
                    hold_at: None,
                    held: name == "launch:budget-hold",
                })
            }
            "parallel:throttled" | "parallel:recovered" => Fact::Parallel(ParallelUpdate {
                max: self.count(&data, "maxParallel"),
                effective: self.count(&data, "effectiveMaxParallel"),
                floor: self.count(&data, "floor"),
                reason: data.get("reason").and_then(Value::as_str).map(throttle_reason),
                change: Some(match name {
                    "parallel:throttled" => ParallelChange::Throttled,
                    _ => ParallelChange::Recovered,
                }),
                ..ParallelUpdate::default()
            }),
            "agent:failed" | "agent:timeout" => {
                let mut update = SpecUpdate::of(spec(self)?);
                update.error = Some(match name {
                    "agent:timeout" => ErrorClass::Timeout,
                    _ => ErrorClass::Exit,
                });
                Fact::Spec(Box::new(update))
            }
            "agent:completed" | "agent:output" => activity(ActivityClass::Work),
            // What was decided is told by the event of what was done, too.
            "rate-limit:decision" => activity(ActivityClass::Bookkeeping),
            _ => return Ok(None),
        };
        Ok(Some(fact))
    }

    /// A line of an agent of the orchestrator, as an object or as the text of one.
    fn codex_event(&mut self, d: &Data<'_>) -> Result<Option<Fact>, Reason> {
        let mut line: Value = parsed(required(d.event)?.get())?;
        if let Value::String(text) = &line {
            line = parsed(text)?;
        }
        let kind = line.get("type").and_then(Value::as_str).ok_or(Reason::BadValue)?;
        let Some(spec) = self.spec_name(d, Field::SpecName)? else {
            let unattributed = OrchestrationUpdate { unattributed: true, ..OrchestrationUpdate::default() };
            return Ok(Some(Fact::Orchestration(Box::new(unattributed))));
        };
        let mut update = SpecUpdate::of(spec);
        match kind {
            "thread.started" => {
                let thread = line.get("thread_id").and_then(Value::as_str).filter(|id| !id.is_empty());
                update.thread = thread.map(|id| Id(bounded(id, self.reducer)));
            }
            "turn.started" => update.turn = true,
            "error" => update.error = Some(ErrorClass::Other),
            kind => {
                let news = match kind {
                    "turn.completed" | "turn.failed" => Some(AgentNews::TurnEnded {
                        failed: kind == "turn.failed",
                        usage: line.get("usage").map(|usage| self.agent_usage(usage)),
                    }),
                    "item.started" => self.item(&line, true),
                    "item.completed" => self.item(&line, false),
                    kind if kind.starts_with("item.") => None,
                    _ => return Ok(None),
                };
                return Ok(Some(match news {
                    Some(news) => {
                        Fact::AgentWork(Box::new(AgentWork { spec: update.spec, news, received: false }))
                    }
                    None => activity(ActivityClass::Work),
                }));
            }
        }
        Ok(Some(Fact::Spec(Box::new(update))))
    }

    /// An item that is a call; what an agent thinks, says and plans is none.
    fn item(&self, line: &Value, begins: bool) -> Option<AgentNews> {
        let item = line.get("item")?;
        let word = |field| item.get(field).and_then(Value::as_str);
        let kind = word("type")?;
        let (_, class) = ITEMS.iter().find(|(known, _)| *known == kind)?;
        let call = Id(bounded(word("id").filter(|id| !id.is_empty())?, self.reducer));
        let (tool, class) = (Name::from(kind), *class);
        if begins {
            return Some(AgentNews::CallStarted { call, tool, class });
        }
        let outcome = match word("status") {
            Some("completed") => CallOutcome::Ok,
            Some("failed") => CallOutcome::Error,
            Some("declined") => CallOutcome::Denied,
            _ => CallOutcome::Unknown,
        };
        let exit_code = item.get("exit_code").and_then(Value::as_i64);
        let exit_code = exit_code.and_then(|code| i32::try_from(code).ok());
        Some(AgentNews::CallEnded { call, tool, class, outcome, exit_code })
    }

    fn agent_usage(&mut self, usage: &Value) -> [u64; 3] {
        ["input_tokens", "cached_input_tokens", "output_tokens"]
            .map(|field| self.count(usage, field).unwrap_or(0))
    }

    /// The lists of what became of which spec.
    fn results(&self, data: &Value, batch: Option<u32>, out: &mut Vec<SpecUpdate>) {
        for status in [SpecStatus::Completed, SpecStatus::Failed, SpecStatus::Skipped] {
            let mut specs = self.specs(data.get(status.as_str()), status, batch);
            if status == SpecStatus::Skipped {
                specs.iter_mut().for_each(|s| s.error = Some(ErrorClass::Dependency));
            }
            out.append(&mut specs);
        }
    }

    fn specs(&self, list: Option<&Value>, status: SpecStatus, batch: Option<u32>) -> Vec<SpecUpdate> {
        let names = list.and_then(Value::as_array).into_iter().flatten().take(MAX_SPECS);
        let named = names.filter_map(|name| self.name_of(Some(name)));
        named.map(|name| SpecUpdate { batch, ..SpecUpdate::of(name).with(status) }).collect()
    }

    fn name_of(&self, value: Option<&Value>) -> Option<Name> {
        let text = value?.as_str().filter(|text| !text.is_empty())?;
        Some(Name(bounded(text, self.reducer)))
    }

    fn spec_name(&mut self, d: &Data<'_>, field: Field) -> Result<Option<Name>, Reason> {
        Ok(d.text(field)?.map(|text| Name(self.names.get(text, self.reducer))))
    }

    /// A count of a record; what cannot be one is dropped and counted.
    fn count(&mut self, data: &Value, field: &str) -> Option<u64> {
        let value = data.get(field).filter(|v| !v.is_null())?;
        let number = value.as_f64().filter(|n| (0.0..=super::wire::MAX_NUMBER).contains(n));
        self.notes.dropped += u64::from(number.is_none());
        number.map(|n| n as u64)
    }

    /// A count of the schema; what cannot be one is dropped and counted.
    fn amount(&mut self, d: &Data<'_>, field: Field) -> Result<Option<u64>, Reason> {
        let number = d.count(field)?;
        self.notes.dropped += u64::from(number.is_none() && d.is_there(field));
        Ok(number)
    }

    /// A word of a closed set; an unknown one is left out and counted.
    fn known_word<T>(
        &mut self,
        d: &Data<'_>,
        field: Field,
        parse: impl Fn(&str) -> Option<T>,
        what: &'static str,
    ) -> Result<Option<T>, Reason> {
        let text = d.text(field)?;
        let found = text.and_then(parse);
        if text.is_some() && found.is_none() {
            self.notes.unknown = Some(what);
        }
        Ok(found)
    }
}

fn parsed(text: &str) -> Result<Value, Reason> {
    serde_json::from_str(text).map_err(|_| Reason::BadValue)
}

/// The engine spells its reasons with hyphens, the schema does not.
fn throttle_reason(word: &str) -> ThrottleReason {
    if word.starts_with("rate-limit") || word == ThrottleReason::RateLimit.as_str() {
        ThrottleReason::RateLimit
    } else {
        ThrottleReason::Other
    }
}
