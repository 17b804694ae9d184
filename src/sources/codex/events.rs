//! `event_msg` lines of a rollout and `msg` of the old stream: turns, prompts, items, plans, goals, limits, errors.

use super::output;
use super::usage::Tokens;
use super::wire::{
    ErrorInfo, EventMsg, Item, LimitWindow, RateLimits, Raw, Tagged, TokenNumbers, changes, list, moment,
    object, read, seconds, text, word,
};
use super::{Codex, Emit};
use crate::event::{
    ActivityClass, BlockReason, EndOutcome, ErrorClass, Evidence, Fact, ProgressKind, SessionInfo, Tally,
    Timestamp, TraceContext, Trigger, TurnOutcome,
};

/// First version whose turns say that they failed.
const TELLS_FAILURE: (u32, u32) = (0, 148);

/// The end of a turn.
pub(super) struct TurnEnd {
    pub(super) outcome: TurnOutcome,
    pub(super) error: Option<ErrorClass>,
    pub(super) known: bool,
}

// === impl Codex ===

impl Codex {
    /// An event. `live`: it comes from the old stream, where nothing else says the same.
    pub(super) fn event_msg(&mut self, e: &mut Emit<'_>, msg: &EventMsg<'_>, live: bool) {
        if let Some(turn) = text(msg.turn_id) {
            e.request = Some(self.id(&turn));
        }
        let kind = word(msg.kind);
        match kind.as_ref() {
            "task_started" | "turn_started" => self.turn_started(e, msg),
            "task_complete" | "turn_complete" => self.task_complete(e, msg),
            "turn_aborted" => self.turn_aborted(e, msg),
            "turn.completed" => {
                self.take_usage(e, msg.usage);
                let end = TurnEnd { outcome: TurnOutcome::Completed, error: None, known: true };
                self.end_turn(e, &end);
            }
            "user_message" => self.prompt(e),
            "agent_message" if live => {
                self.push(e, Fact::Activity { class: ActivityClass::Work, message: true });
            }
            "agent_reasoning" if live => {
                self.push(e, Fact::Activity { class: ActivityClass::Work, message: false });
            }
            "token_count" => self.token_count(e, msg),
            "item_completed" => self.item_completed(e, msg),
            "exec_command_begin" => self.command_begins(e, msg),
            "exec_command_end" => {
                let item = Item {
                    id: msg.call_id,
                    command: msg.command,
                    exit_code: msg.exit_code,
                    aggregated_output: msg.aggregated_output,
                    ..Item::default()
                };
                self.command_item(e, &item, None, None);
            }
            "patch_apply_begin" => self.patch_begins(e, msg),
            "patch_apply_end" => {
                let call = word(msg.call_id);
                let ok = read(msg.success).unwrap_or(false);
                self.patch_ended(e, &call, msg.changes, ok, None);
            }
            "plan_update" => self.plan_updated(e, msg.plan),
            "thread_goal_updated" => self.goal_updated(e, msg.goal),
            "context_compacted" => self.compaction_item(e),
            "error" => self.error_event(e, msg, live),
            "stream_error" => self.blocked(e, BlockReason::Retry, None),
            "account/rateLimits/updated" => self.take_limits(msg.rate_limits),
            // Said better by another record, or bookkeeping of the client.
            "agent_message"
            | "agent_reasoning"
            | "agent_reasoning_raw_content"
            | "agent_reasoning_section_break"
            | "agent_message_delta"
            | "agent_reasoning_delta"
            | "exec_command_output_delta"
            | "turn_diff"
            | "background_event"
            | "warning"
            | "thread_settings_applied"
            | "thread_name_updated"
            | "session_configured"
            | "item_started"
            | "mcp_tool_call_begin"
            | "mcp_tool_call_end"
            | "web_search_begin"
            | "web_search_end"
            | "view_image_tool_call"
            | "entered_review_mode"
            | "exited_review_mode"
            | "thread_rolled_back"
            | "undo_started"
            | "undo_completed"
            | "shutdown_complete"
            | "sub_agent_activity"
            | "collab_agent_spawn_begin"
            | "collab_agent_spawn_end"
            | "collab_agent_interaction_begin"
            | "collab_agent_interaction_end"
            | "collab_waiting_begin"
            | "collab_waiting_end"
            | "collab_close_begin"
            | "collab_close_end"
            | "guardian_assessment" => {}
            other => self.push_unknown(e, &format!("event_msg/{other}")),
        }
    }

    fn turn_started(&mut self, e: &mut Emit<'_>, msg: &EventMsg<'_>) {
        self.state.turn = text(msg.turn_id).map(|t| self.id(&t));
        self.state.own_turn = true;
        self.state.turn_result = false;
        self.state.compacted = false;
        e.request = self.state.turn.clone();
        let attribution: Tagged<'_> = object(msg.turn_attribution);
        let trigger = match word(attribution.turn_trigger).as_ref() {
            _ if self.state.child => Trigger::Machine,
            "user" | "exec" => Trigger::Person,
            "" => Trigger::Unknown,
            _ => Trigger::Machine,
        };
        self.driven_by(e, &word(attribution.turn_trigger));
        self.push(e, Fact::TurnStarted { trigger });
        // Only where codex traces itself: its spans have this trace, none of them is named.
        let trace = text(msg.trace_id).and_then(|id| TraceContext::of_trace(&id));
        if let Some(began) = e.out.last_mut().filter(|e| matches!(e.fact, Fact::TurnStarted { .. })) {
            began.trace = trace;
        }
    }

    /// A thread may be begun by `codex exec` and taken up in front of a person, or the other way round; versions
    /// that name the trigger of a turn tell which process writes now.
    fn driven_by(&mut self, e: &mut Emit<'_>, trigger: &str) {
        let run = trigger == "exec";
        if self.state.child || self.state.run == run || !(run || trigger == "user") {
            return;
        }
        self.state.run = run;
        let info = SessionInfo { interactive: Some(!run), ..SessionInfo::default() };
        self.push(e, Fact::SessionUpdated(info));
    }

    fn task_complete(&mut self, e: &mut Emit<'_>, msg: &EventMsg<'_>) {
        let end = if msg.error.is_some() {
            let info: ErrorInfo<'_> = object(msg.error);
            let class = error_class(info.codex_error_info);
            if class == ErrorClass::RateLimit {
                self.push(e, Fact::RateLimitSignal { delay_ms: None });
            }
            TurnEnd { outcome: TurnOutcome::Failed, error: Some(class), known: true }
        } else {
            // A resumed thread may be written by a newer version than its head names: those also give the start.
            let tells = self.state.version.is_none_or(|v| v >= TELLS_FAILURE) || msg.started_at.is_some();
            let known = tells || msg.last_agent_message.is_some() || self.state.turn_result;
            TurnEnd { outcome: TurnOutcome::Completed, error: None, known }
        };
        self.end_turn(e, &end);
    }

    fn turn_aborted(&mut self, e: &mut Emit<'_>, msg: &EventMsg<'_>) {
        let (outcome, error) = match word(msg.reason).as_ref() {
            "review_ended" => (TurnOutcome::Completed, None),
            "budget_limited" => (TurnOutcome::Failed, Some(ErrorClass::UsageLimit)),
            _ => (TurnOutcome::Cancelled, None),
        };
        self.end_turn(e, &TurnEnd { outcome, error, known: true });
    }

    /// A turn ends, and with it the run of a process that has only one.
    pub(super) fn end_turn(&mut self, e: &mut Emit<'_>, end: &TurnEnd) {
        let limited = matches!(end.error, Some(ErrorClass::UsageLimit | ErrorClass::RateLimit));
        let reset = self.state.reset.filter(|_| limited);
        self.push(
            e,
            Fact::TurnEnded {
                outcome: end.outcome,
                error: end.error,
                reset,
                denied: false,
                result_known: end.known,
            },
        );
        if self.state.turn == e.request {
            self.state.turn = None;
        }
        if self.state.run {
            let outcome = match end.outcome {
                _ if !end.known => EndOutcome::Unknown,
                TurnOutcome::Completed => EndOutcome::Completed,
                TurnOutcome::Cancelled => EndOutcome::Cancelled,
                _ => EndOutcome::Failed,
            };
            self.push(e, Fact::SessionEnded { outcome, error: end.error, workflow: false });
        }
    }

    fn token_count(&mut self, e: &mut Emit<'_>, msg: &EventMsg<'_>) {
        self.take_limits(msg.rate_limits);
        let usage = if msg.input_tokens.is_some() {
            // 0.23 has no totals: each count is one response.
            self.state.usage.take_addition(Tokens::of(&TokenNumbers {
                input_tokens: msg.input_tokens,
                cached_input_tokens: msg.cached_input_tokens,
                output_tokens: msg.output_tokens,
                ..TokenNumbers::default()
            }))
        } else {
            self.state.usage.take_info(msg.info, e.time, false)
        };
        match usage {
            Some(usage) => self.push_usage(e, usage),
            // Said again at every retry of a stream: a sign of life, no work.
            None => self.push(e, Fact::Activity { class: ActivityClass::Bookkeeping, message: false }),
        }
    }

    pub(super) fn take_usage(&mut self, e: &mut Emit<'_>, usage: Raw<'_>) {
        if let Some(usage) = Tokens::read(usage).and_then(|t| self.state.usage.take_total(t)) {
            self.push_usage(e, usage);
        }
    }

    /// Keeps the reset of a window that is used up; the later one where both are.
    fn take_limits(&mut self, raw: Raw<'_>) {
        if raw.is_none() {
            return;
        }
        let limits: RateLimits<'_> = object(raw);
        self.state.reset = [limits.primary, limits.secondary]
            .into_iter()
            .filter_map(|window| {
                let window: LimitWindow<'_> = object(window);
                let full = read::<f64>(window.used_percent)? >= 100.0;
                full.then(|| seconds(window.resets_at.or(window.reset_at))).flatten()
            })
            .max();
    }

    fn item_completed(&mut self, e: &mut Emit<'_>, msg: &EventMsg<'_>) {
        let item: Item<'_> = object(msg.item);
        let (started, completed) = (msg.started_at_ms, msg.completed_at_ms);
        match word(item.kind).as_ref() {
            "CommandExecution" => self.command_item(e, &item, started, completed),
            "FileChange" => self.file_item(e, &item, started, completed),
            "McpToolCall" => self.mcp_item(e, &item, started, completed),
            "CollabAgentToolCall" => self.collab_item(e, &item, started, completed),
            "UserMessage" => self.prompt(e),
            "ContextCompaction" => self.compaction_item(e),
            "Plan" => {
                self.state.turn_result = true;
                self.push(e, Fact::PlanUpdated { ready: true, items: Tally::default(), told: false });
            }
            "WebSearch" | "ImageView" | "ImageGeneration" | "DynamicToolCall" | "Sleep" => {
                self.push(e, Fact::Activity { class: ActivityClass::Work, message: false });
            }
            "AgentMessage" | "Reasoning" | "HookPrompt" | "EnteredReviewMode" | "ExitedReviewMode" => {}
            other => self.push_unknown(e, &format!("item/{other}")),
        }
    }

    /// The item of a compaction, which follows its `compacted` line where there is one.
    fn compaction_item(&mut self, e: &mut Emit<'_>) {
        if !std::mem::take(&mut self.state.compacted) {
            self.compaction(e, None);
        }
    }

    pub(super) fn plan_updated(&self, e: &mut Emit<'_>, plan: Raw<'_>) {
        if plan.is_none() {
            return;
        }
        let items: Vec<Tagged<'_>> = list(plan);
        let mut tally = Tally::default();
        for item in items {
            match word(item.status).as_ref() {
                "completed" => tally.done += 1,
                "in_progress" => tally.in_progress += 1,
                _ => tally.pending += 1,
            }
        }
        self.push(e, Fact::PlanUpdated { ready: false, items: tally, told: false });
    }

    /// A goal's state, from its event or from the output of the goal tools; told when it changed.
    pub(super) fn goal_updated(&mut self, e: &mut Emit<'_>, goal: Raw<'_>) {
        let goal: Tagged<'_> = object(goal);
        let (Some(status), Some(created)) = (text(goal.status), read::<i64>(goal.created_at)) else { return };
        let now = (created, self.reducer.hash(status.as_bytes()));
        let before = self.state.goal.replace(now);
        if before == Some(now) {
            return;
        }
        match status.as_ref() {
            "complete" => {
                let subject = Some(self.reducer.hash(&created.to_le_bytes()));
                let (kind, evidence) = (ProgressKind::GoalCompleted, Evidence::Structured);
                self.push(e, Fact::Progress { kind, evidence, call: None, subject });
            }
            "blocked" => self.blocked(e, BlockReason::WorkflowBlocked, None),
            "usage_limited" | "budget_limited" => self.blocked(e, BlockReason::UsageLimit, None),
            // Taken up again.
            "active" if before.is_some_and(|(goal, _)| goal == created) => self.push(e, Fact::Unblocked),
            _ => {}
        }
    }

    pub(super) fn blocked(&self, e: &mut Emit<'_>, reason: BlockReason, until: Option<Timestamp>) {
        self.push(e, Fact::Blocked { reason, attempt: None, delay_ms: None, until });
    }

    fn error_event(&mut self, e: &mut Emit<'_>, msg: &EventMsg<'_>, live: bool) {
        let info: ErrorInfo<'_> = object(msg.error);
        if word(info.kind) == "rate_limit" {
            self.push(e, Fact::RateLimitSignal { delay_ms: None });
            self.blocked(e, BlockReason::RateLimit, moment(info.reset_at));
        } else if live {
            // The old stream says nothing more after an error.
            let end = TurnEnd { outcome: TurnOutcome::Failed, error: Some(ErrorClass::Other), known: true };
            self.end_turn(e, &end);
        } else {
            self.push(e, Fact::Error { class: ErrorClass::Other, recoverable: true });
        }
    }

    fn patch_begins(&mut self, e: &mut Emit<'_>, msg: &EventMsg<'_>) {
        let changes = changes(msg.changes);
        let lines = output::changed_lines(changes.values());
        let paths: Vec<String> = changes.into_keys().collect();
        self.edit_begins(e, &word(msg.call_id), &paths, Some(lines));
    }
}

/// The class of `codex_error_info`, a word or `{word: {"http_status_code": n}}`.
fn error_class(raw: Raw<'_>) -> ErrorClass {
    #[derive(serde::Deserialize)]
    struct Status {
        http_status_code: Option<u16>,
    }
    if let Some(known) = text(raw) {
        return match known.as_ref() {
            "context_window_exceeded" => ErrorClass::ContextOverflow,
            "usage_limit_exceeded" | "session_budget_exceeded" => ErrorClass::UsageLimit,
            "server_overloaded" | "internal_server_error" => ErrorClass::Server,
            "unauthorized" => ErrorClass::Auth,
            "bad_request" => ErrorClass::InvalidRequest,
            "http_connection_failed"
            | "response_stream_connection_failed"
            | "response_stream_disconnected"
            | "response_too_many_failed_attempts" => ErrorClass::Network,
            _ => ErrorClass::Other,
        };
    }
    let nested: Option<std::collections::BTreeMap<String, Status>> = read(raw);
    match nested.and_then(|n| n.into_values().next()) {
        Some(Status { http_status_code: Some(code) }) => http_class(code),
        Some(Status { http_status_code: None }) => ErrorClass::Network,
        None => ErrorClass::Other,
    }
}

/// The class of an HTTP status.
pub(super) fn http_class(code: u16) -> ErrorClass {
    match code {
        401 | 403 => ErrorClass::Auth,
        402 => ErrorClass::Billing,
        408 | 504 => ErrorClass::Timeout,
        429 => ErrorClass::RateLimit,
        400..=499 => ErrorClass::InvalidRequest,
        500..=599 => ErrorClass::Server,
        _ => ErrorClass::Other,
    }
}
