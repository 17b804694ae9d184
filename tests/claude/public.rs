//! Public session files against the figures that were counted beside them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use agent_session_exporter::event::{
    CallOutcome, Event, Fact, ProgressKind, StepKind, ToolClass, TurnOutcome,
};
use agent_session_exporter::sources::claude_code::Claude;
use agent_session_exporter::sources::files::Owners;
use agent_session_exporter::sources::{Decode, Record};
use serde_json::Value;

use super::folded::{File, Folded, OBSERVED, decode, file, lines, opening, text};
use super::recordings::is_prompt;
use super::scenarios::repeated;

/// What an entry counts. Tools with nothing to count are not in the maps.
#[derive(Debug, Default, PartialEq)]
struct Figures {
    prompts: u64,
    interrupts: u64,
    calls: BTreeMap<String, u64>,
    in_sidechains: u64,
    results: u64,
    errors: u64,
    without_call: u64,
    open: Vec<String>,
    edits: u64,
    landed: u64,
    subagents: u64,
    api_errors: u64,
    retries: u64,
    compactions: u64,
    repeated: u64,
    /// Input, output, cache creation, cache read.
    tokens: [u64; 4],
}

/// One entry of the notes.
struct Entry {
    name: String,
    state: String,
    figures: Figures,
    versions: Vec<String>,
}

/// The number behind a word.
fn number(text: &str, word: &str) -> u64 {
    let (_, rest) = text.split_once(word).unwrap_or_else(|| panic!("{word} in {text}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("a number behind {word} in {text}"))
}

fn line<'t>(block: &'t str, begin: &str) -> &'t str {
    let found = block.lines().find_map(|l| l.strip_prefix(begin));
    found.unwrap_or_else(|| panic!("{begin} in {block}"))
}

fn entry(block: &str) -> Entry {
    let name = block.lines().next().unwrap().trim().to_owned();
    let (all, edits) = (line(block, "- prompts "), line(block, "- edit calls "));
    let all = format!("prompts {all}");
    let edits = format!("edit calls {edits}");
    let tokens =
        line(block, "- assistant lines ").split_once("; tokens ").unwrap().1.split(';').next().unwrap();
    let tokens: Vec<u64> = tokens.split('/').map(|n| n.parse().unwrap()).collect();
    let (tools, open) = (all.split_once("tool calls ").unwrap().1, all.split_once("open calls ").unwrap().1);
    let tools = tools.split_once('(').unwrap().1.split(')').next().unwrap();
    let tools = tools.split(", ").filter(|t| *t != "-").map(|tool| {
        let (name, n) = tool.rsplit_once(' ').unwrap();
        (name.to_owned(), n.parse().unwrap())
    });
    let mut figures = Figures {
        prompts: number(&all, "prompts "),
        interrupts: number(&all, "interrupts "),
        calls: tools.collect(),
        in_sidechains: number(&all, "of these in sidechains "),
        results: number(&all, "results "),
        errors: number(&all, "(errors "),
        without_call: number(&all, "without call "),
        open: open.split(", ").map(|t| t.trim().to_owned()).filter(|t| t != "-").collect(),
        edits: number(&edits, "edit calls "),
        landed: number(&edits, "landed "),
        subagents: number(&edits, "sub-agent calls "),
        api_errors: number(&edits, "API error lines "),
        retries: number(&edits, "(retry) lines "),
        compactions: number(&edits, "compactions "),
        repeated: number(&edits, "most repeated identical call "),
        tokens: tokens.try_into().unwrap(),
    };
    figures.open.sort();
    let versions = block.split_once(", versions ").unwrap().1.split(", session ids").next().unwrap();
    Entry {
        name,
        state: line(block, "- state at the end of the file: ").to_owned(),
        figures,
        versions: versions.split(", ").map(str::to_owned).collect(),
    }
}

fn entries() -> Vec<Entry> {
    let notes = text("public/claude-code/README.md");
    let all: Vec<_> = notes.split("\n## ").skip(1).map(entry).collect();
    assert_eq!(all.len(), 27);
    all
}

fn fixture(name: &str) -> File {
    file(&format!("public/claude-code/{name}"))
}

fn count(events: &[Event], is: impl Fn(&Event) -> bool) -> u64 {
    events.iter().filter(|e| is(e)).count() as u64
}

/// The events of a file, and how many prompts of a person stand in it as such. A command that begins a turn is one
/// too, but is written as what the program makes of it; the notes leave commands out.
fn decode_one(file: &File) -> (Vec<Event>, u64) {
    let owners = Arc::new(Owners::default());
    let mut decoder = Claude::new(&opening(file, &owners));
    let (mut events, mut typed) = (Vec::new(), 0);
    for line in lines(&file.bytes) {
        let before = events.len();
        decoder.decode(&Record { bytes: line, observed: OBSERVED }, &mut events).unwrap();
        let kind: Value = serde_json::from_slice(line).unwrap();
        if kind["type"] == "user" {
            typed += count(&events[before..], |e| is_prompt(&e.fact));
        }
    }
    (events, typed)
}

/// The same, from events and the facts they fold to.
fn figures(file: &File) -> Figures {
    let (events, prompts) = decode_one(file);
    let events = events.as_slice();
    let mut found = Figures { prompts, repeated: repeated(events.iter()), ..Figures::default() };
    let mut open = BTreeMap::new();
    for event in events {
        match &event.fact {
            Fact::ToolStarted(start) => {
                *found.calls.entry(start.tool.as_str().to_owned()).or_default() += 1;
                found.in_sidechains += u64::from(event.parent.is_some());
                found.edits += u64::from(start.class == ToolClass::Edit);
                found.subagents += u64::from(start.class == ToolClass::Task);
                open.insert(start.call.clone(), start.tool.as_str().to_owned());
            }
            Fact::ToolEnded(end) => {
                found.results += 1;
                found.errors += u64::from(end.outcome != CallOutcome::Ok);
                found.without_call += u64::from(open.remove(&end.call).is_none());
            }
            Fact::Usage(usage) => {
                let said = [usage.input, usage.output, usage.cache_write, usage.cache_read];
                found.tokens.iter_mut().zip(said).for_each(|(sum, n)| *sum += n);
            }
            Fact::TurnEnded { outcome: TurnOutcome::Cancelled, .. } => found.interrupts += 1,
            Fact::TurnEnded { outcome: TurnOutcome::Failed, .. } => found.api_errors += 1,
            _ => {}
        }
    }
    found.retries = count(events, |e| matches!(e.fact, Fact::Blocked { .. }));
    found.compactions = count(
        events,
        |e| matches!(&e.fact, Fact::StepCompleted { step, .. } if step.kind == StepKind::Compaction),
    );
    found.open = open.into_values().collect();
    found.open.sort();
    let folded = Folded::of(events.iter().cloned());
    let all = folded.all();
    let landed = all.iter().flat_map(|f| &f.progress).filter(|p| p.kind == ProgressKind::FileModified);
    found.landed = landed.map(|p| p.high + p.low).sum();
    found
}

#[test]
fn each_public_file_counts_as_its_notes_say() {
    let mut wrong = Vec::new();
    for entry in entries() {
        let file = fixture(&entry.name);
        let (events, found) = (decode(std::slice::from_ref(&file)), figures(&file));
        let mut entry = entry;
        if entry.name == "cc-2.1.29-interrupt-denied-edit.jsonl" {
            // One command, described in two ways: the notes compare descriptions too.
            assert_eq!(std::mem::replace(&mut entry.figures.repeated, 2), 1);
        }
        if found != entry.figures {
            wrong.push(format!("{}: {found:#?}\nis to be {:#?}", entry.name, entry.figures));
        }
        for event in &events {
            if let Fact::SessionStarted(info) | Fact::SessionUpdated(info) = &event.fact
                && let Some(version) = &info.version
            {
                assert!(entry.versions.iter().any(|v| v == version.as_str()), "{}", entry.name);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a note about the end means for the states right then and eleven minutes later.
fn fits(entry: &Entry, now: &str, later: &str) -> bool {
    let state = |s: &str, wanted: &str| s.split('/').next() == Some(wanted);
    let note = entry.state.as_str();
    let working = state(now, "running") || state(now, "progressing");
    if note.starts_with("idle") || note.contains("session file with two ids") {
        // Versions that tell no ends, and a message cut before it said why it stopped, show it by silence only.
        let told = now == "completed/turn_complete" && later == now;
        let silent =
            working && (later == "unknown/ended_without_result" || later == "completed/background_open");
        told || silent
    } else if note.starts_with("cancelled turn") {
        state(now, "cancelled") && later == now
    } else if note.starts_with("running") {
        working && !state(later, "completed")
    } else if note.starts_with("turn failed") || note.starts_with("last turn failed") {
        state(now, "failed") && later == now
    } else if note.starts_with("waiting on provider") {
        state(now, "blocked") && state(later, "blocked")
    } else if note.starts_with("waiting_for_user (plan approval)") {
        now == "waiting_for_user/plan_approval" && later == now
    } else {
        panic!("{}: {note}", entry.name)
    }
}

#[test]
fn each_public_file_ends_as_its_notes_say() {
    let mut wrong = Vec::new();
    for entry in entries() {
        let folded = Folded::of(decode(&[fixture(&entry.name)]));
        if entry.state.starts_with("finished sub-agent") || entry.state.starts_with("belongs to the parent") {
            let all = folded.all();
            assert_eq!(all.len(), 1, "{}", entry.name);
            assert!(all[0].parent.is_some(), "{}", entry.name);
            assert_eq!((all[0].turns.started, all[0].turns.completed), (1, 1), "{}", entry.name);
            continue;
        }
        // The message that was the last had not said yet why it stopped: nothing in the file ends that turn.
        if entry.name == "cc-2.1.96-tool-denied-then-esc.jsonl" {
            let last = folded.last();
            assert_eq!(folded.state(last), "running/working");
            assert_eq!(folded.state(last.plus(7 * 3_600_000)), "unknown/silent_too_long");
            continue;
        }
        let last = folded.last();
        let (now, later) = (folded.state(last), folded.state(last.plus(660_000)));
        if !fits(&entry, &now, &later) {
            wrong.push(format!("{}: {now}, later {later}, but {}", entry.name, entry.state));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_parents_own_files_make_one_tree() {
    let folder = "cc-2.1.101-subagents-dir/8a525d27";
    let mut all = vec![fixture(&format!("{folder}.jsonl"))];
    for agent in ["a0ecfa598b8d3e4cb", "ad5ac77d703f22b9f", "ae04f393030f3393b"] {
        all.push(fixture(&format!("{folder}/subagents/agent-{agent}.jsonl")));
    }
    for _ in 0..all.len() {
        all.rotate_left(1);
        let folded = Folded::of(decode(&all));
        let root = folded.root();
        assert_eq!(
            (root.turns.started, root.turns.failed, root.turns.cancelled),
            (root.turns.completed, 0, 0)
        );
        // Three with files of their own, nine the parent tells of.
        assert_eq!(folded.all().len(), 1 + 12);
        assert!(folded.all().iter().all(|f| f.turn.is_none()));
        assert_eq!(folded.state(folded.last()), "completed/turn_complete");
    }
}

#[test]
fn derived_files_say_what_their_originals_say() {
    for (name, original) in [
        ("cc-crlf", "cc-2.1.96-tool-denied-then-esc"),
        ("cc-bom", "cc-2.1.149-plan-approval-pending"),
        ("cc-windows-paths", "cc-2.1.7-two-subagents"),
    ] {
        let found = figures(&file(&format!("public/derived/{name}.jsonl")));
        assert_eq!(found, figures(&fixture(&format!("{original}.jsonl"))), "{name}");
    }
    let cut = file("public/derived/cc-cut-inside-multibyte.jsonl");
    let mut whole = fixture("cc-1.0.108-sidechains.jsonl");
    assert_eq!(lines(&whole.bytes).len(), lines(&cut.bytes).len() + 1);
    let text = whole.bytes.trim_ascii_end();
    let last = text.iter().rposition(|b| *b == b'\n').unwrap();
    whole.bytes.truncate(last + 1);
    assert_eq!(figures(&cut), figures(&whole));
}

#[test]
fn a_project_is_named_by_the_last_part_of_its_path() {
    let projects = |name: &str| {
        let mut all: Vec<_> = decode(&[file(name)])
            .into_iter()
            .filter_map(|e| e.project.map(|p| p.as_str().to_owned()))
            .collect();
        all.sort();
        all.dedup();
        all
    };
    let windows = projects("public/derived/cc-windows-paths.jsonl");
    assert_eq!(windows, projects("public/claude-code/cc-2.1.7-two-subagents.jsonl"));
    assert_eq!(windows.len(), 1);
    assert!(!windows[0].contains(['\\', '/', ':']), "{windows:?}");
    assert_eq!(projects("claude_code/edit-ok.transcript.jsonl"), ["project"]);
}

#[test]
fn prompts_that_leave_the_queue_at_once_leave_it_all() {
    let folded = Folded::of(decode(&[fixture("cc-2.1.101-subagents-dir/8a525d27.jsonl")]));
    assert_eq!(folded.root().queued_prompts, 0);
}

#[test]
fn reading_a_file_again_tells_the_same_events() {
    for entry in entries() {
        let file = fixture(&entry.name);
        let once = decode(std::slice::from_ref(&file));
        assert_eq!(once, decode(std::slice::from_ref(&file)), "{}", entry.name);
        assert!(once.iter().all(|e| e.observed == OBSERVED && e.id.is_some()));
        let mut ids = HashMap::new();
        for event in &once {
            // A line that was written twice says the same twice.
            let first = ids.entry(event.id).or_insert(event);
            assert_eq!(first.fact, event.fact, "{}", entry.name);
        }
        // Written again by a newer version: that is told, whatever else the line told before.
        if entry.name == "cc-2.1.7-to-2.1.12-two-objects-one-line.jsonl" {
            let told = once.iter().filter(|e| std::ptr::eq(ids[&e.id], *e));
            let version = Folded::of(told.cloned()).root().info.version.clone();
            assert_eq!(version.unwrap().as_str(), "2.1.12");
        }
    }
}
