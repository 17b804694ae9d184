//! One row for each session of each recording: what the fold knows at its end, and the state then and later. The rows
//! are in `tests/golden/claude_code/recordings.txt`.

use agent_session_exporter::event::{Event, Fact, Trigger};
use agent_session_exporter::session::{Facts, Snapshot};

use super::folded::{Folded, decode, file, files, fixtures, words};
use super::moments::{Play, scenarios};

/// Right after the last record, behind ten minutes, behind six hours.
const LATER: [i64; 3] = [0, 660, 7 * 3600];

fn rows(name: &str, events: &[Event], registry: Option<&Folded>) -> String {
    let folded = Folded::of(events.iter().cloned());
    let snapshot = folded.snapshot();
    let mut out = String::new();
    for slot in snapshot.roots() {
        let f = snapshot.facts(slot).unwrap();
        let tree = snapshot.rollup(slot, folded.last()).unwrap();
        let spent = |pick: fn(&Facts) -> u64| tree.all().map(pick).sum::<u64>();
        let by_person = |e: &&Event| e.session == f.session && is_prompt(&e.fact);
        out.push_str(&format!(
            "{name} | turns {} {} {} {} | prompts {} | calls {} {} | {} | tokens {} {} {} {} | children {} | {}",
            f.turns.started,
            f.turns.completed,
            f.turns.failed,
            f.turns.cancelled,
            events.iter().filter(by_person).count(),
            tree.calls().total,
            tree.calls().failed,
            progress(tree.all()),
            spent(|f| f.usage.input),
            spent(|f| f.usage.cache_read),
            spent(|f| f.usage.cache_write),
            spent(|f| f.usage.output),
            tree.children.len(),
            states(&folded, &snapshot, slot),
        ));
        if let Some(known) = registry {
            let beside = known.snapshot();
            let slot = beside.find(&f.source, &f.session).unwrap();
            out.push_str(&format!(" | with its registry {}", states(known, &beside, slot)));
        }
        out.push('\n');
    }
    out
}

/// A person's prompt.
pub(crate) fn is_prompt(fact: &Fact) -> bool {
    matches!(fact, Fact::Prompt { trigger: Trigger::Person, queued: false })
}

fn states(folded: &Folded, snapshot: &Snapshot, slot: usize) -> String {
    let at = |s: i64| {
        let now = folded.last().plus(s * 1000);
        words(snapshot.derive(&snapshot.rollup(slot, now).unwrap()))
    };
    let mut states: Vec<_> = LATER.into_iter().map(at).collect();
    states.dedup();
    states.join(" > ")
}

/// `kind high+low` for each kind that was seen in a tree.
fn progress<'a>(tree: impl Iterator<Item = &'a Facts>) -> String {
    let mut sums = std::collections::BTreeMap::new();
    for count in tree.flat_map(|f| &f.progress) {
        let sum = sums.entry(count.kind).or_insert((0, 0));
        *sum = (sum.0 + count.high, sum.1 + count.low);
    }
    let each: Vec<_> =
        sums.iter().map(|(kind, (high, low))| format!("{} {high}+{low}", kind.as_str())).collect();
    each.join(", ")
}

#[test]
fn each_recording_ends_as_its_row_says() {
    let mut all = String::new();
    for scenario in scenarios() {
        let alone: Vec<_> = Play::new(&scenario, false).events().cloned().collect();
        all.push_str(&rows(&scenario, &alone, Some(&Play::new(&scenario, true).whole())));
    }
    let mut public = files("public/claude-code", ".jsonl");
    public.extend(files("public/derived", ".jsonl"));
    for name in public {
        let short = name.strip_prefix("public/").unwrap().strip_suffix(".jsonl").unwrap();
        let short = short.strip_prefix("claude-code/").unwrap_or(short);
        all.push_str(&rows(short, &decode(&[file(&name)]), None));
    }
    let path = fixtures("../golden/claude_code/recordings.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &all).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap();
    for (got, wanted) in all.lines().zip(wanted.lines()) {
        assert_eq!(got, wanted);
    }
    assert_eq!(all.lines().count(), wanted.lines().count());
}
