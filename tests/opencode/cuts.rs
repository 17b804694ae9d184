//! The connection goes after every tenth record and comes back, at once or after some records were missed; or the
//! exporter itself ends there and begins again with what it had saved.

use serde_json::json;

use super::folded::{Folded, story, words};
use super::play::Play;
use super::recorded::{connections, scenarios};

/// How it is cut.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// The connection is lost, and this many records with it.
    Connection(usize),
    /// The exporter is.
    Exporter(usize),
}

/// Records between two cuts.
const EVERY: usize = 10;

fn cut(scenario: &str, at: usize, how: Cut) -> Play {
    cut_in(Play::new(), scenario, at, how)
}

fn cut_in(mut play: Play, scenario: &str, at: usize, how: Cut) -> Play {
    let mut n = 0;
    let mut missing = 0;
    for (i, lines) in connections(scenario).iter().enumerate() {
        if i > 0 {
            play.between(scenario);
        }
        play.connect(lines[0].at);
        for line in lines {
            n += 1;
            if missing > 0 {
                play.missed(line);
                missing -= 1;
                if missing == 0 {
                    match how {
                        Cut::Connection(_) => play.connect(line.at),
                        Cut::Exporter(_) => play.exporter_restarts(),
                    }
                }
                continue;
            }
            play.line(line);
            if n == at {
                match how {
                    Cut::Connection(0) => {
                        play.lost();
                        play.connect(line.at);
                    }
                    Cut::Connection(missed) => {
                        play.lost();
                        missing = missed;
                    }
                    Cut::Exporter(0) => play.exporter_restarts(),
                    Cut::Exporter(missed) => missing = missed,
                }
            }
        }
        if missing > 0 {
            missing = 0;
            match how {
                Cut::Connection(_) => play.connect(play.now()),
                Cut::Exporter(_) => play.exporter_restarts(),
            }
        }
        play.until(play.now().plus(2_000));
    }
    play.ends(scenario);
    play
}

/// State and numbers of each session at the end; what only the stream tells is left out.
fn end(play: &Play) -> std::collections::BTreeMap<String, (String, String)> {
    let folded = Folded::of(play.events.iter().map(|(_, event)| event));
    let states = folded.states(play.now());
    let of = |f: &agent_session_exporter::session::Facts| {
        let id = f.session.as_str().to_owned();
        let state = states.get(&id).map(words).unwrap_or_default();
        let t = f.turns;
        let high: Vec<String> = f
            .progress
            .iter()
            .filter(|p| p.high > 0)
            .map(|p| format!("{} {}", p.kind.as_str(), p.high))
            .collect();
        let u = f.usage;
        let numbers = format!(
            "turns {} {} {} {} calls {} tokens {} {} {} {} pending {} {}",
            t.started,
            t.completed,
            t.failed,
            t.cancelled,
            f.calls.total,
            u.input,
            u.cache_read,
            u.cache_write,
            u.output,
            f.actions.len(),
            high.join(" ")
        );
        (id, (state, numbers))
    };
    folded.all().iter().map(|f| of(f)).collect()
}

/// Every scenario cut everywhere; gives the differences.
fn differences(how: Cut) -> Vec<String> {
    let mut found = Vec::new();
    let mut runs = 0;
    for scenario in scenarios() {
        let whole = end(&Play::whole(&scenario));
        let records: usize = connections(&scenario).iter().map(Vec::len).sum();
        for at in (EVERY..records).step_by(EVERY) {
            runs += 1;
            let play = cut(&scenario, at, how);
            let got = end(&play);
            for (session, (state, numbers)) in &whole {
                // What was deleted in between is not there to be asked; what never did anything is not missed.
                if state == "queued/starting" && !got.contains_key(session) {
                    continue;
                }
                let Some((cut_state, cut_numbers)) = got.get(session) else {
                    found.push(format!("{scenario}@{at} {how:?}: {session} is not known"));
                    continue;
                };
                if cut_state != state {
                    let completed = cut_state.starts_with("completed");
                    assert!(
                        !completed,
                        "{scenario}@{at} {how:?}: {cut_state}, not {state}\n{}",
                        story(&play.events, play.now())
                    );
                }
                let deleted = state == "cancelled/deleted" && cut_state == state;
                if !deleted && (cut_state, cut_numbers) != (state, numbers) {
                    found.push(format!(
                        "{scenario}@{at} {how:?}: {cut_state} {cut_numbers}\n    not {state} {numbers}"
                    ));
                }
            }
        }
    }
    assert!(runs > 300, "{runs}");
    found
}

#[test]
fn a_short_cut_changes_nothing() {
    let found = differences(Cut::Connection(0));
    assert!(found.is_empty(), "{} {:#?}", found.len(), found);
}

#[test]
fn what_was_missed_is_made_up_for() {
    let found = differences(Cut::Connection(15));
    assert!(found.is_empty(), "{} {:#?}", found.len(), found);
}

#[test]
fn a_restart_of_the_exporter_counts_nothing_twice() {
    let found = differences(Cut::Exporter(15));
    assert!(found.is_empty(), "{} {:#?}", found.len(), found);
}

/// Cuts at which something went wrong once: between a prompt and its first part, before the first answer, inside a
/// command, after a restart of the server.
#[test]
fn cuts_that_were_hard_stay_whole() {
    for (scenario, at) in [
        ("abort", 100),
        ("compaction", 70),
        ("doom_loop", 40),
        ("model_errors", 130),
        ("queued_prompt", 70),
        ("server_restart", 80),
    ] {
        let play = cut(scenario, at, Cut::Connection(15));
        assert_eq!(end(&play), end(&Play::whole(scenario)), "{scenario}@{at}");
    }
}

/// Whoever has used it for weeks has hundreds of sessions: the history is asked for only where each of them is named.
#[test]
fn what_was_missed_among_hundreds_of_sessions_is_made_up_for() {
    let mut idle_when_lost = 0;
    for (scenario, at) in [("abort", 100), ("model_errors", 130), ("queued_prompt", 70), ("test_commit", 30)]
    {
        let mut play = Play::new();
        for n in 0..900 {
            // Newer than those of the recording, so that these are on the last page.
            let (id, at) = (format!("ses_other{n}"), 4_000_000_000_000_i64 + n);
            let info =
                json!({ "id": id, "directory": "/elsewhere", "time": { "created": at, "updated": at } });
            play.world.sessions.insert(id, info);
        }
        let play = cut_in(play, scenario, at, Cut::Exporter(60));
        assert_eq!(end(&play), end(&cut(scenario, at, Cut::Exporter(60))), "{scenario}@{at}");
        idle_when_lost += usize::from(play.asked.iter().any(|ask| ask.path == "/sync/history"));
    }
    assert_eq!(idle_when_lost, 4, "the history was asked");
}

/// Sessions that came and went while nobody listened are found by the list.
#[test]
fn sessions_that_came_and_went_meanwhile_are_told() {
    let mut differ = Vec::new();
    for how in [Cut::Connection(10_000), Cut::Exporter(10_000)] {
        for scenario in
            ["edit_task", "subagent", "model_errors", "abort", "todo_steps", "retry_abort", "compaction"]
        {
            let whole = end(&Play::whole(scenario));
            let got = end(&cut(scenario, 5, how));
            for (session, (state, numbers)) in &whole {
                let Some((cut_state, cut_numbers)) = got.get(session) else {
                    differ.push(format!("{scenario} {how:?}: {session} is not known ({state} {numbers})"));
                    continue;
                };
                if (cut_state, cut_numbers) != (state, numbers) {
                    differ.push(format!(
                        "{scenario} {how:?}: {cut_state} {cut_numbers}\n    not {state} {numbers}"
                    ));
                }
            }
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}
