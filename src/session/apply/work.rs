//! Calls and the facts of progress they are evidence for (design section 4).

use super::super::counts::{Count, Effects, Observation};
use super::super::facts::{
    CommandMemory, Facts, MAX_DONE, MAX_LOW_VALUE, MAX_OPEN_CALLS, MAX_REMEMBERED, OpenCall, ProgressCount,
    ProgressFact, RECENT_PROGRESS,
};
use super::super::notes::What;
use super::super::rollup::interrupted_at;
use super::{UNSEEN_TOOL, later, remember, short};
use crate::event::{
    CallEnd, CallOutcome, CallStart, Commands, Evidence, Id, Name, ProgressKind, Resolution, Timestamp,
    ToolClass,
};

// === impl Facts ===

impl Facts {
    pub(super) fn call_started(
        &mut self,
        start: &CallStart,
        request: Option<&Id>,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        let key = short(&start.call);
        if self.memory.ended_calls.contains(&key)
            || self.open_calls.iter().any(|c| c.start.call == start.call)
        {
            return;
        }
        self.start_of_work(t, out);
        // The call a dialog was about runs: the dialog is over, whoever answered it.
        self.close_actions_of(&start.call, Resolution::Approved, t, out);
        if start.nested {
            self.stand_for_script(t);
        } else {
            self.calls.total += 1;
        }
        if t.is_none() || t > self.last_progress.max(self.last_prompt) {
            self.log.begin(start, t, self.last_seen);
        }
        if start.class == ToolClass::Task {
            self.note(t, &mut out.notes, || What::TaskBegan(start.call.clone()));
        }
        if self.open_calls.len() < MAX_OPEN_CALLS {
            let request =
                request.cloned().or_else(|| self.turn.as_ref().and_then(|turn| turn.request.clone()));
            self.open_calls.push(OpenCall { start: start.clone(), since: t, request });
        }
    }

    /// A call inside another begins: from now on it stands for the script it belongs to, the last one that began
    /// before it and has not ended. One that returned while its commands go on counts beside them.
    fn stand_for_script(&mut self, t: Option<Timestamp>) {
        use ToolClass::{Edit, Plan, Read, Search, User};
        let runs_others =
            |c: &&OpenCall| !c.start.nested && !matches!(c.start.class, Edit | Plan | Read | Search | User);
        let outer = self.open_calls.iter().filter(runs_others).filter(|c| t.is_none() || c.since <= t);
        if let Some(script) = outer.max_by_key(|c| c.since) {
            self.log.is_script(&script.start.call);
        }
    }

    pub(super) fn call_ended(&mut self, end: &CallEnd, t: Option<Timestamp>, out: &mut Effects) {
        let key = short(&end.call);
        if !remember(&mut self.memory.ended_calls, key, MAX_REMEMBERED) {
            return;
        }
        // An end long after its turn's comes too late: the call was cut off, whether or not the store has said so by
        // now, so that facts do not depend on when it looks.
        let cut =
            self.open_calls.iter().find(|c| c.start.call == end.call).and_then(|c| interrupted_at(self, c));
        if let Some(at) = cut.filter(|at| t > Some(*at)) {
            let end = CallEnd::interrupted(end.call.clone());
            return self.end_call(&end, Some(at), out);
        }
        self.end_call(end, t, out);
    }

    fn end_call(&mut self, end: &CallEnd, t: Option<Timestamp>, out: &mut Effects) {
        // That a call was cut off is no sign of life; the store says so on behalf of calls nobody ended.
        if end.outcome != CallOutcome::Interrupted {
            self.work(t, out);
        }
        self.close_actions_of(&end.call, Resolution::Answered, t, out);
        self.log.end(end);
        let open =
            self.open_calls.iter().position(|c| c.start.call == end.call).map(|i| self.open_calls.remove(i));
        let nested = open.as_ref().is_some_and(|c| c.start.nested);
        let failed = matches!(end.outcome, CallOutcome::Error | CallOutcome::Denied)
            || end.exit_code.is_some_and(|c| c != 0);
        if !nested {
            if open.is_none() {
                self.calls.total += 1;
            }
            if failed {
                self.calls.failed += 1;
            }
            let tool = open.as_ref().map_or_else(|| Name::from(UNSEEN_TOOL), |c| c.start.tool.clone());
            let outcome =
                if failed && end.outcome == CallOutcome::Ok { CallOutcome::Error } else { end.outcome };
            out.one(Count::ToolCall(tool, outcome));
        }
        let class = open.as_ref().map_or(ToolClass::Other, |c| c.start.class);
        out.measure(Observation::Call(class), open.as_ref().and_then(|c| c.since), t);
        if let Some(open) = &open {
            let outcome =
                if failed && end.outcome == CallOutcome::Ok { CallOutcome::Error } else { end.outcome };
            self.note_call(open, outcome, end.exit_code, t, &mut out.notes);
        }
        self.credit_call(open.as_ref(), end, failed, t, out);
    }

    /// The facts of progress a call's end is evidence for; a call that is none of them counts as activity.
    pub(super) fn credit_call(
        &mut self,
        open: Option<&OpenCall>,
        end: &CallEnd,
        failed: bool,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        let commands = open.map_or(Commands::default(), |c| c.start.commands);
        let command_key = open.and_then(|c| c.start.key).unwrap_or_else(|| short(&end.call));
        let class = open.map_or(ToolClass::Other, |c| c.start.class);
        let mut credited = false;
        if end.outcome == CallOutcome::Ok && end.diff_lines.is_some_and(|n| n > 0) {
            let fresh = self.credit_once(&end.call, ProgressKind::FileModified);
            if fresh {
                self.progress(ProgressKind::FileModified, Evidence::Structured, 1, true, t, out);
            }
            credited = true;
        }
        let ran = matches!(end.outcome, CallOutcome::Ok | CallOutcome::Error);
        if let Some(code) = end.exit_code.filter(|_| ran) {
            let passed = code == 0 && end.outcome == CallOutcome::Ok;
            if commands.has(Commands::COMMIT) && passed {
                if self.credit_once(&end.call, ProgressKind::CommitCreated) {
                    self.progress(ProgressKind::CommitCreated, Evidence::ExitCode, 1, true, t, out);
                }
                credited = true;
            }
            let pairs = [
                (Commands::TEST, ProgressKind::TestPassed, ProgressKind::TestFailed),
                (Commands::BUILD, ProgressKind::BuildSucceeded, ProgressKind::BuildFailed),
            ];
            for (bit, pass, fail) in pairs {
                if commands.has(bit) {
                    let kind = if passed { pass } else { fail };
                    if self.credit_once(&end.call, kind) {
                        self.command_result(command_key, kind, passed, Evidence::ExitCode, t, out);
                    }
                    credited = true;
                }
            }
        }
        if !credited {
            let kind = match class {
                _ if failed => ProgressKind::ErrorOccurred,
                ToolClass::Read | ToolClass::Search => ProgressKind::FileRead,
                _ => ProgressKind::ToolCall,
            };
            // Something else may have declared the same for this call already.
            if !self.memory.credited.contains(&short((&end.call, kind))) {
                self.progress(kind, Evidence::Structured, 1, false, t, out);
            }
        }
    }

    /// Whether a call may still be credited with a fact of this kind.
    pub(super) fn credit_once(&mut self, call: &Id, kind: ProgressKind) -> bool {
        remember(&mut self.memory.credited, short((call, kind)), MAX_REMEMBERED)
    }

    /// A test or build: a pass is an advance only where it is news.
    pub(super) fn command_result(
        &mut self,
        key: u64,
        kind: ProgressKind,
        passed: bool,
        evidence: Evidence,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        let known = self.memory.commands.iter().position(|c| c.key == key);
        let mut entry = known.and_then(|i| self.memory.commands.remove(i)).unwrap_or(CommandMemory {
            key,
            passed: None,
            failing: false,
        });
        let landed_since = self.last_landing > entry.passed;
        let news = passed && (known.is_none() || entry.failing || landed_since);
        entry.failing = !passed;
        if passed {
            entry.passed = entry.passed.max(t);
        }
        if self.memory.commands.len() >= MAX_DONE {
            self.memory.commands.pop_front();
        }
        self.memory.commands.push_back(entry);
        self.progress(kind, evidence, 1, news, t, out);
    }

    pub(super) fn declared_progress(
        &mut self,
        kind: ProgressKind,
        evidence: Evidence,
        call: Option<&Id>,
        subject: Option<u64>,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        if let Some(call) = call {
            let told_by_its_end =
                matches!(kind, ProgressKind::ToolCall | ProgressKind::FileRead | ProgressKind::ErrorOccurred)
                    && self.memory.ended_calls.contains(&short(call));
            if told_by_its_end || !self.credit_once(call, kind) {
                return;
            }
        }
        self.work(t, out);
        match kind {
            ProgressKind::TestPassed | ProgressKind::BuildSucceeded => {
                self.command_result(subject.unwrap_or(kind as u64), kind, true, evidence, t, out);
            }
            ProgressKind::TestFailed => {
                let key = subject.unwrap_or(ProgressKind::TestPassed as u64);
                self.command_result(key, kind, false, evidence, t, out);
            }
            ProgressKind::BuildFailed => {
                let key = subject.unwrap_or(ProgressKind::BuildSucceeded as u64);
                self.command_result(key, kind, false, evidence, t, out);
            }
            _ => {
                let fresh =
                    subject.is_none_or(|s| remember(&mut self.memory.done, short((kind, s)), MAX_DONE));
                self.progress(kind, evidence, 1, fresh && kind.can_be_high(), t, out);
            }
        }
    }

    pub(super) fn verification(
        &mut self,
        passed: bool,
        call: Option<&Id>,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        let kind = ProgressKind::VerificationPassed;
        if let Some(call) = call
            && !self.credit_once(call, kind)
        {
            return;
        }
        self.work(t, out);
        out.one(Count::Verification(passed));
        if passed {
            let failed_since = self.verification_failed_at > self.verification_passed_at;
            let news = self.verification_passed_at.is_none()
                || failed_since
                || self.last_landing > self.verification_passed_at;
            later(&mut self.verification_passed_at, t);
            self.progress(kind, Evidence::Declared, 1, news, t, out);
        } else {
            later(&mut self.verification_failed_at, t);
            self.note(t, &mut out.notes, || What::VerificationFailed);
        }
    }

    /// Counts `n` facts of a kind; of high value they also are a landing.
    pub(super) fn progress(
        &mut self,
        kind: ProgressKind,
        evidence: Evidence,
        n: u32,
        high: bool,
        t: Option<Timestamp>,
        out: &mut Effects,
    ) {
        out.add(Count::Progress(kind, high), u64::from(n));
        // Calls and reads are spans themselves.
        if high || matches!(kind, ProgressKind::TestFailed | ProgressKind::BuildFailed) {
            self.note(t, &mut out.notes, || What::Progress { kind, evidence, high });
        }
        let entry = match self.progress.iter().position(|p| p.kind == kind) {
            Some(i) => &mut self.progress[i],
            None => {
                let at = self.progress.partition_point(|p| p.kind < kind);
                self.progress.insert(at, ProgressCount { kind, high: 0, low: 0 });
                &mut self.progress[at]
            }
        };
        if high {
            entry.high += u64::from(n);
        } else {
            entry.low += u64::from(n);
            if t.is_none() || t > self.last_progress {
                self.low_value.push(t, MAX_LOW_VALUE);
            }
            return;
        }
        self.begin(t, out);
        self.machine_turns.clear_until(t);
        self.step_entries.retain(|(_, entered)| t.is_some() && *entered > t);
        self.low_value.clear_until(t);
        self.log.clear_until(t);
        let Some(time) = t else { return };
        later(&mut self.last_activity, t);
        later(&mut self.last_progress, t);
        if !matches!(kind, ProgressKind::TestPassed | ProgressKind::BuildSucceeded) {
            later(&mut self.last_landing, t);
        }
        let at = self.recent_progress.partition_point(|p| p.time <= time);
        self.recent_progress.insert(at, ProgressFact { time, kind, evidence });
        if self.recent_progress.len() > RECENT_PROGRESS {
            self.recent_progress.pop_front();
        }
    }
}
