//! Lines of a rollout file: the thread's head, the context of a turn, items of the model's conversation, tokens,
//! compactions; and which lines were copied from another thread. `event_msg` lines are in `events`.

use super::usage::Tokens;
use super::wire::{
    Compacted, Context, EventMsg, Line, Meta, Raw, ResponseItem, Source, SubAgent, Tagged, ThreadSpawn,
    UsageRecord, blocks, moment, object, read, text, word,
};
use super::{Codex, Emit, made_ms};
use crate::event::{
    ActivityClass, Capabilities, Capability, Fact, Mode, Name, SessionInfo, Step, StepKind, StepOutcome,
    Trigger,
};

/// How long after its creation copied history may be written into a thread of a version without turns.
const COPY_MS: i64 = 1_000;

// === impl Codex ===

impl Codex {
    pub(super) fn rollout_line(&mut self, e: &mut Emit<'_>, kind: &str, payload: Raw<'_>) {
        match kind {
            "session_meta" => self.session_meta(e, &object(payload)),
            "turn_context" => {
                let context: Context<'_> = object(payload);
                if !self.is_inherited(e, context.turn_id, true) {
                    self.turn_context(e, &context);
                }
            }
            "response_item" => {
                // Copies may also come without the marks of their turns, before the thread's own first turn.
                let copied = !self.state.own_turn && self.state.usage.is_burst(e.time);
                if !self.is_inherited(e, None, false) && !copied {
                    self.response_item(e, &object(payload), false);
                }
            }
            "event_msg" => {
                let msg: EventMsg<'_> = object(payload);
                let marker = matches!(word(msg.kind).as_ref(), "task_started" | "turn_started");
                if self.is_inherited(e, msg.turn_id, marker) {
                    if word(msg.kind) == "token_count" {
                        self.state.usage.take_info(msg.info, e.time, true);
                    }
                } else {
                    self.event_msg(e, &msg, false);
                }
            }
            "token_usage_record" => self.usage_record(e, &object(payload)),
            "compacted" => {
                if !self.is_inherited(e, None, false) {
                    self.state.compacted = true;
                    self.compaction(e, payload);
                }
            }
            // Snapshots of settings and context: neither activity nor news.
            "world_state"
            | "retained_context"
            | "additional_tools"
            | "inter_agent_communication_metadata" => {}
            other => self.push_unknown(e, other),
        }
    }

    /// Whether a line is a copy of another thread's. Copies stand before the first turn that is younger than
    /// this thread; a marker says where a turn begins, and lines without a turn id follow the last marker.
    pub(super) fn is_inherited(&mut self, e: &Emit<'_>, turn: Raw<'_>, marker: bool) -> bool {
        let made = text(turn).as_deref().and_then(made_ms);
        if let (Some(own), Some(turn)) = (self.state.made_ms, made) {
            let older = turn < own;
            if marker {
                self.state.inherited = older;
            }
            return older;
        }
        // Versions without turns have no marker; there only the time tells.
        if self.state.inherited
            && self.state.version.is_some_and(|v| v < (0, 104))
            && let (Some(created), Some(time)) = (self.state.usage.created, e.time)
            && time.since(created) > COPY_MS
        {
            self.state.inherited = false;
        }
        self.state.inherited
    }

    fn session_meta(&mut self, e: &mut Emit<'_>, meta: &Meta<'_>) {
        let id = text(meta.id);
        let thread = id.as_deref().map(|id| self.reducer.hash(id.as_bytes()));
        if self.state.started {
            // The head of the thread whose history was copied; the own head is repeated by some versions.
            self.state.inherited |= thread != self.state.thread;
            return;
        }
        let Some(id) = id else { return };
        let spawn = spawned_by(meta.source);
        let parent = text(meta.parent_thread_id).map(|p| p.into_owned()).or(spawn.parent);
        let child = spawn.child || parent.is_some() || word(meta.thread_source) == "subagent";
        let fork = text(meta.forked_from_id);
        let originator = text(meta.originator);
        let source = text(meta.source);
        let exec = originator.as_deref() == Some("codex_exec") || source.as_deref() == Some("exec");
        let at = moment(meta.timestamp).or(e.time);

        let s = &mut self.state;
        s.started = true;
        s.thread = thread;
        s.made_ms = made_ms(&id);
        s.child = child;
        s.run = exec && !child;
        s.version = text(meta.cli_version).as_deref().and_then(version);
        s.usage.copied = child || fork.is_some();
        s.usage.created = e.time.max(at);
        self.state.session = Some(self.session_id(&id));
        self.state.parent = parent.map(|p| self.session_id(&p));
        self.set_project(meta.cwd);
        self.state.provider = text(meta.model_provider).map(|p| self.name(&p));
        // Without a version nothing is known that differs from the source's default.
        self.state.capabilities = self.state.version.map(|_| self.capabilities());

        let interactive = match (child || exec, source.is_some()) {
            (true, _) => Some(false),
            // 0.39 names neither a source nor an originator of its own for `codex exec`.
            (false, known) => known.then_some(true),
        };
        let info = SessionInfo {
            agent: Some(Name::from("codex")),
            version: text(meta.cli_version).map(|v| self.name(&v)),
            originator: originator.map(|o| self.name(&o)),
            provider: self.state.provider.clone(),
            interactive,
            capabilities: self.state.capabilities,
            forked_from: fork.filter(|_| !child).map(|f| self.session_id(&f)),
            ..SessionInfo::default()
        };
        self.push_at(e, at, Fact::SessionStarted(info));
    }

    /// The head of a file of bare items.
    pub(super) fn bare_head(&mut self, e: &mut Emit<'_>, line: &Line<'_>) {
        let Some(id) = text(line.id).filter(|_| !self.state.started) else { return };
        self.state.started = true;
        self.state.made_ms = made_ms(&id);
        self.state.session = Some(self.session_id(&id));
        let capabilities = Capabilities::of(&[Capability::Progress, Capability::Calls]);
        self.state.capabilities = Some(capabilities);
        let info = SessionInfo {
            agent: Some(Name::from("codex")),
            capabilities: Some(capabilities),
            ..SessionInfo::default()
        };
        self.push(e, Fact::SessionStarted(info));
    }

    fn turn_context(&mut self, e: &mut Emit<'_>, context: &Context<'_>) {
        if let Some(turn) = text(context.turn_id) {
            e.request = Some(self.id(&turn));
        }
        self.set_project(context.cwd);
        if context.approval_policy.is_some() {
            self.state.never_asks = Some(word(context.approval_policy) == "never");
        }
        self.state.reviewed = text(context.approvals_reviewer).is_some_and(|r| r != "user");

        let before =
            (self.state.model.clone(), self.state.mode, self.state.read_only, self.state.capabilities);
        if let Some(model) = text(context.model) {
            self.state.model = Some(self.name(&model));
        }
        let collaboration: Tagged<'_> = object(context.collaboration_mode);
        if let Some(mode) = text(collaboration.mode) {
            self.state.mode = Some(match mode.as_ref() {
                "plan" => Mode::Plan,
                "default" | "code" => Mode::Build,
                _ => Mode::Other,
            });
        }
        let sandbox: Tagged<'_> = object(context.sandbox_policy);
        let profile: Tagged<'_> = object(context.active_permission_profile);
        if let Some(policy) = text(sandbox.kind).or_else(|| text(sandbox.mode)) {
            self.state.read_only = Some(policy == "read-only");
        } else if let Some(id) = text(profile.id) {
            self.state.read_only = Some(id == ":read-only");
        }
        if self.state.version.is_some() {
            self.state.capabilities = Some(self.capabilities());
        }
        let s = &self.state;
        if before != (s.model.clone(), s.mode, s.read_only, s.capabilities) {
            let info = SessionInfo {
                model: s.model.clone(),
                mode: s.mode,
                read_only: s.read_only,
                capabilities: s.capabilities,
                ..SessionInfo::default()
            };
            self.push(e, Fact::SessionUpdated(info));
        }
    }

    /// What a thread of this version can show. Requests for approval are in no rollout, so that pending actions
    /// are certain only where nobody is asked: a question to the user is a call like any other.
    fn capabilities(&self) -> Capabilities {
        let version = self.state.version.unwrap_or_default();
        let mut set = Capabilities::of(&[Capability::Progress, Capability::Calls, Capability::Usage]);
        for (capability, holds) in [
            (Capability::Ends, version >= (0, 104)),
            (Capability::Liveness, version >= (0, 148)),
            (Capability::PendingActions, self.state.never_asks == Some(true)),
        ] {
            if holds {
                set.0 |= capability.bit();
            }
        }
        set
    }

    pub(super) fn set_project(&mut self, cwd: Raw<'_>) {
        if let Some(project) = text(cwd).and_then(|cwd| self.reducer.project_of(&cwd)) {
            self.state.project = Some(Name::from(project.as_str()));
        }
    }

    /// An item of the conversation. Messages and thoughts also come as events; items are in every version, so
    /// they alone count. Only bare files have no event for a prompt.
    pub(super) fn response_item(&mut self, e: &mut Emit<'_>, item: &ResponseItem<'_>, bare: bool) {
        let work = |message| Fact::Activity { class: ActivityClass::Work, message };
        match word(item.kind).as_ref() {
            "message" => match word(item.role).as_ref() {
                "assistant" => self.push(e, work(true)),
                "user" if bare && is_prompt(item.content) => self.prompt(e),
                _ => {}
            },
            "reasoning" | "web_search_call" | "image_generation_call" | "tool_search_call" => {
                self.push(e, work(false));
            }
            "function_call" => self.function_call(e, item),
            "custom_tool_call" => self.custom_call(e, item),
            "local_shell_call" => self.local_shell_call(e, item),
            "function_call_output" | "custom_tool_call_output" => self.call_output(e, item),
            "ghost_snapshot" | "additional_tools" | "tool_search_output" | "compaction"
            | "compaction_summary" | "context_compaction" | "other" => {}
            other => self.push_unknown(e, &format!("response_item/{other}")),
        }
    }

    /// A prompt; a sub-agent's comes from its parent.
    pub(super) fn prompt(&self, e: &mut Emit<'_>) {
        let trigger = if self.state.child { Trigger::Machine } else { Trigger::Person };
        self.push(e, Fact::Prompt { trigger, queued: false });
    }

    pub(super) fn compaction(&mut self, e: &mut Emit<'_>, payload: Raw<'_>) {
        self.state.turn_result = true;
        let compacted: Compacted<'_> = object(payload);
        let id = match text(compacted.window_id) {
            Some(window) => self.id(&window),
            None => self.id(&format!("compaction-{:016x}", self.reducer.hash(e.bytes))),
        };
        let step = Step { id, kind: StepKind::Compaction, name: None, index: None, total: None, entry: None };
        self.push(e, Fact::StepCompleted { step, outcome: StepOutcome::Advanced });
    }

    fn usage_record(&mut self, e: &mut Emit<'_>, record: &UsageRecord<'_>) {
        let thread = text(record.thread_id).map(|t| self.reducer.hash(t.as_bytes()));
        let foreign = thread.is_some() && self.state.thread.is_some() && thread != self.state.thread;
        if self.is_inherited(e, record.turn_id, false) || foreign {
            return;
        }
        let Some(tokens) = Tokens::read(record.usage) else { return };
        self.state.usage.records = true;
        let mut usage = tokens.usage();
        usage.response = text(record.response_id).map(|r| self.id(&r));
        self.push_usage(e, usage);
    }

    pub(super) fn push_usage(&self, e: &mut Emit<'_>, mut usage: crate::event::Usage) {
        usage.model = self.state.model.clone();
        usage.provider = self.state.provider.clone();
        self.push(e, Fact::Usage(usage));
    }
}

/// Who spawned a thread, from `source`.
struct Spawn {
    child: bool,
    parent: Option<String>,
}

fn spawned_by(source: Raw<'_>) -> Spawn {
    let source: Source<'_> = object(source);
    let agent: SubAgent<'_> = object(source.subagent);
    let spawn: ThreadSpawn<'_> = object(agent.thread_spawn);
    // A review (`{"subagent":"review"}`) is a child without a known parent.
    Spawn { child: source.subagent.is_some(), parent: read(spawn.parent_thread_id) }
}

/// Whether a bare user message is a prompt: the program's own context comes in its own tags.
fn is_prompt(content: Raw<'_>) -> bool {
    let own = ["<environment_context>", "<user_instructions>", "<turn_aborted>"];
    blocks(content).first().is_some_and(|first| !own.iter().any(|tag| first.starts_with(tag)))
}

/// Major and minor version.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
