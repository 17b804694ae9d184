//! Every scenario: what became of it, against what was recorded as its meaning, and a golden of all that can be told.

use std::fmt::Write as _;
use std::path::Path;

use agent_session_exporter::event::{ActivityClass, Fact, StepOutcome};
use agent_session_exporter::session::Facts;
use agent_session_exporter::sources::openfox::DEF;

use super::play::{Play, reducer};
use super::recorded::{Recording, index, iso, names};

/// Final state per session where it is not the one of `index.json`, with the reason.
const DIFFERENT: &[(&str, &str, &str)] = &[
    (
        "plan",
        "completed/turn_complete",
        "to be allowed to type the next prompt is no pending action; plan.ready is told",
    ),
    (
        "restart",
        "failed/interrupted",
        "a restarted server that does not know the turn any more is failed/interrupted",
    ),
];

/// How `index.json` names what we call otherwise.
const NAMES: &[(&str, &str)] = &[
    ("blocked/workflow_ended_without_status", "blocked/workflow_blocked"),
    ("cancelled/stopped", "cancelled/by_user"),
    ("cancelled/workflow_cancelled", "cancelled/by_user"),
    ("completed/workflow_completed", "completed/workflow_complete"),
    ("failed/chat_error", "failed/error"),
];

fn facts_of(text: &mut String, facts: &Facts) {
    let name = |n: &Option<agent_session_exporter::event::Name>| {
        n.as_ref().map_or("-".to_owned(), |n| n.as_str().to_owned())
    };
    let info = &facts.info;
    writeln!(
        text,
        "  {} {} project {} mode {} phase {} model {} of {}",
        name(&info.agent),
        name(&info.version),
        name(&facts.project),
        info.mode.map_or("-", |m| m.as_str()),
        info.phase.map_or("-", |p| p.as_str()),
        name(&info.model),
        name(&info.provider),
    )
    .unwrap();
    writeln!(text, "  {}", name(&info.url)).unwrap();
    let turns = &facts.turns;
    writeln!(
        text,
        "  turns {} started, {} completed, {} failed, {} cancelled; calls {}, {} failed",
        turns.started, turns.completed, turns.failed, turns.cancelled, facts.calls.total, facts.calls.failed
    )
    .unwrap();
    for p in &facts.progress {
        writeln!(text, "  progress {}: {} high, {} low", p.kind.as_str(), p.high, p.low).unwrap();
    }
    if let Some(c) = facts.criteria {
        writeln!(
            text,
            "  criteria {} passed, {} pending, {} failed",
            c.done,
            c.pending + c.in_progress,
            c.failed
        )
        .unwrap();
    }
    let usage = &facts.usage;
    match usage.seen {
        true => writeln!(
            text,
            "  tokens {} in, {} out; context {:?}",
            usage.input, usage.output, facts.context_used
        ),
        false => writeln!(text, "  tokens not reported"),
    }
    .unwrap();
}

/// What happened, in words; what moves in the order of milliseconds only, but no hash.
fn event(fact: &Fact) -> Option<String> {
    Some(match fact {
        Fact::Activity { class: ActivityClass::Work, .. } | Fact::SessionUpdated(_) | Fact::Usage(_) => {
            return None;
        }
        Fact::ToolStarted(start) => format!("tool.started {}", start.tool.as_str()),
        Fact::ToolEnded(end) => format!(
            "tool.ended {} exit {:?} diff {:?} read {:?}",
            end.outcome.as_str(),
            end.exit_code,
            end.diff_lines,
            end.read.map(|r| (r.start, r.end))
        ),
        Fact::StepStarted(step) => format!(
            "workflow.step.started {} \"{}\" ({}) entry {}",
            step.id.as_str(),
            step.name.as_ref().map_or("", |n| n.as_str()),
            step.kind.as_str(),
            step.entry.unwrap_or_default()
        ),
        Fact::StepCompleted { step, outcome } if step.name.is_some() => {
            format!("workflow.step.completed {} {}", step.id.as_str(), outcome.as_str())
        }
        Fact::ActionRequired { kind, certainty, .. } => {
            format!("user.action_required {} {}", kind.as_str(), certainty.as_str())
        }
        Fact::ActionResolved { resolution, .. } => format!("user.action_resolved {}", resolution.as_str()),
        Fact::TurnStarted { trigger } => format!("turn.started by {}", trigger.as_str()),
        Fact::TurnEnded { outcome, result_known, .. } => {
            format!(
                "turn.ended {}{}",
                outcome.as_str(),
                if *result_known { "" } else { ", result not known" }
            )
        }
        Fact::SessionEnded { outcome, .. } => format!("session.ended {}", outcome.as_str()),
        Fact::Blocked { reason, .. } => format!("session.blocked {}", reason.as_str()),
        Fact::PlanUpdated { ready, items, .. } => format!(
            "plan.{} {} pending, {} under way, {} claimed, {} failed",
            if *ready { "ready" } else { "updated" },
            items.pending,
            items.in_progress,
            items.done,
            items.failed
        ),
        Fact::CriteriaUpdated(t) => {
            format!(
                "criteria.updated {} pending, {} under way, {} passed, {} failed",
                t.pending, t.in_progress, t.done, t.failed
            )
        }
        Fact::Writer(writer) => format!("writer {}", writer.as_str()),
        other => other.type_name().to_owned(),
    })
}

fn golden(name: &str, play: &Play<'_>) -> String {
    let mut text = format!("{name}\n");
    for (id, derived) in play.derived(&Default::default()) {
        let facts = play.facts(id.as_str());
        writeln!(text, "\nsession {}: {}", id.as_str(), super::play::words(&derived)).unwrap();
        facts_of(&mut text, facts);
        writeln!(text, "  states").unwrap();
        for (_, since, state) in play.states.iter().filter(|(session, ..)| *session == id) {
            writeln!(text, "    {} {state}", &iso(*since)[11..23]).unwrap();
        }
        writeln!(text, "  events").unwrap();
        for e in play.events.iter().filter(|e| e.session == id) {
            if let Some(mut words) = event(&e.fact) {
                if let (Fact::TurnStarted { .. }, Some(request)) = (&e.fact, &e.request) {
                    words = format!("{words}: {}", request.as_str());
                }
                writeln!(text, "    {} {words}", &iso(e.time.unwrap())[11..23]).unwrap();
            }
        }
    }
    let status = play.asked.iter().filter(|path| path.ends_with("/status")).count();
    writeln!(text, "\nasked for {status} statuses; {} disagreements", play.disagreements).unwrap();
    text
}

#[test]
fn every_scenario_is_told_as_before() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/openfox");
    let mut stale = Vec::new();
    let names = names();
    assert_eq!(names.len(), 32);
    for name in &names {
        let recording = Recording::of(name);
        let play = Play::of(&recording);
        assert_eq!(play.unknown, Vec::<String>::new(), "{name}");
        assert_eq!(play.disagreements, 0, "{name}");
        let wanted = golden(name, &play);
        let path = folder.join(format!("{name}.txt"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        if std::fs::read_to_string(&path).unwrap_or_default() != wanted {
            stale.push(name);
        }
    }
    assert!(stale.is_empty(), "stale goldens: {stale:?} (BLESS=1 renews them)");
}

#[test]
fn a_replay_of_what_the_server_said_tells_the_same() {
    for name in names() {
        let recording = Recording::of(&name);
        let play = Play::in_full_seconds(&recording);
        play.tape.tells_the_same(&DEF, &name, reducer(), play.events.iter());
    }
}

#[test]
fn the_recorded_meaning_is_met() {
    let index = index();
    let mut sessions = 0;
    for scenario in index["scenarios"].as_array().unwrap() {
        let name = scenario["scenario"].as_str().unwrap();
        let Some(suggested) = scenario["suggested"].as_array() else { continue };
        let recording = Recording::of(name);
        let play = Play::of(&recording);
        let derived = play.derived(&Default::default());
        assert_eq!(derived.len(), suggested.len(), "{name}");
        for wanted in suggested {
            sessions += 1;
            let id = wanted["sessionId"].as_str().unwrap();
            let found = derived.iter().find(|(session, _)| session.as_str() == id).unwrap();
            let text = |field: &str| wanted[field].as_str().unwrap();
            let final_state = format!("{}/{}", text("finalState"), text("finalReason"));
            let own =
                NAMES.iter().find(|(theirs, _)| *theirs == final_state).map_or(final_state.as_str(), |n| n.1);
            let ours = super::play::words(&found.1);
            let different = DIFFERENT.iter().find(|(scenario, state, _)| *scenario == name && *state == ours);
            assert!(own == ours || different.is_some(), "{name} {id}: {ours}, not {own}");

            let facts = play.facts(id);
            let count = |field: &str| usize::try_from(wanted[field].as_u64().unwrap()).unwrap();
            assert_eq!(facts.calls.failed, count("failedToolResults") as u64, "{name} failed calls");
            let entries =
                play.events.iter().filter(|e| e.session.as_str() == id).filter_map(|e| match &e.fact {
                    Fact::StepStarted(step) => step.entry,
                    _ => None,
                });
            assert_eq!(entries.max().unwrap_or_default() as usize, count("maxStepAttempt"), "{name} entries");
            let keys =
                play.events.iter().filter(|e| e.session.as_str() == id).filter_map(|e| match &e.fact {
                    Fact::ToolStarted(start) => start.key,
                    _ => None,
                });
            let mut keys: Vec<u64> = keys.collect();
            keys.sort_unstable();
            let most = keys.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap_or_default();
            assert_eq!(most, count("maxIdenticalToolCalls"), "{name} equal calls");
            let criteria = wanted["criteria"].as_object().unwrap();
            let passed = criteria.values().filter(|v| *v == "passed").count();
            assert_eq!(facts.criteria.map_or(0, |c| c.done) as usize, passed, "{name} criteria");
            steps(name, id, &play, wanted);
        }
    }
    assert!(sessions >= 33, "{sessions}");
    for (name, state, _) in DIFFERENT {
        let recording = Recording::of(name);
        let play = Play::of(&recording);
        let derived = play.derived(&Default::default());
        assert!(derived.iter().any(|(_, d)| super::play::words(d) == *state), "{name}");
    }
}

/// Steps, plans, tasks and verifications as the nine public events tell them. Entries of the step that is entered
/// already are told too: the loop shows in them.
fn steps(name: &str, id: &str, play: &Play<'_>, wanted: &serde_json::Value) {
    let mut ours = Vec::new();
    for e in play.events.iter().filter(|e| e.session.as_str() == id) {
        let at = e.time.unwrap();
        match &e.fact {
            Fact::StepStarted(s) => ours.push((at, "workflow.step.started", s.id.as_str().to_owned())),
            Fact::StepCompleted { step, outcome } if step.name.is_some() => {
                let back = *outcome == StepOutcome::LoopedBack;
                let outcome = if back { "looped_back" } else { "advanced" };
                ours.push((at, "workflow.step.completed", format!("{} {outcome}", step.id.as_str())));
            }
            Fact::Verification { passed: false, .. } => ours.push((at, "verification.failed", String::new())),
            Fact::PlanUpdated { ready: true, .. } => ours.push((at, "plan.ready", String::new())),
            Fact::ActionRequired { .. } => ours.push((at, "user.action_required", String::new())),
            Fact::Blocked { .. } => ours.push((at, "session.blocked", String::new())),
            Fact::Progress { kind, .. } if kind.as_str() == "task_completed" => {
                ours.push((at, "task.completed", String::new()));
            }
            _ => {}
        }
    }
    for event in wanted["publicEvents"].as_array().unwrap() {
        let at = super::recorded::time(event["at"].as_str().unwrap());
        let kind = event["event"].as_str().unwrap();
        let step = event["step"].as_str().unwrap_or_default();
        let subject = match kind {
            "workflow.step.started" => step.to_owned(),
            "workflow.step.completed" => format!("{step} {}", event["outcome"].as_str().unwrap()),
            // A failed turn tells itself, and a plan to be looked at is no pending action here.
            "session.failed" => continue,
            "user.action_required" if event["kind"] == "plan_review" => continue,
            _ => String::new(),
        };
        // What a poll found, ours found when it asked itself; what follows from a fall settles a moment later.
        let near = |(time, k, s): &(_, &str, String)| {
            let apart = at.since(*time);
            *k == kind
                && *s == subject
                && apart.abs() <= if kind == "user.action_required" { 16_000 } else { 10 }
        };
        let found = ours.iter().position(near);
        if name == "confirm_path" && found.is_none() {
            // Two confirmations of a second each, which no poll of every fifteen seconds sees; see `named`.
            continue;
        }
        let found = found.unwrap_or_else(|| panic!("{name}: no {event} among {ours:#?}"));
        ours.remove(found);
    }
    ours.retain(|(_, kind, _)| *kind != "workflow.step.started");
    assert!(ours.is_empty(), "{name}: told beyond what was recorded: {ours:#?}");
}
