//! `demo`: bundled recordings of a real agent, decoded by the real source and replayed with shifted times, so that
//! someone without agents sees every state within a minute.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::event::{Batch, Event, Fact, Reducer, SourceId, Timestamp, Writer};
use crate::sources::codex::Codex;
use crate::sources::{Decode as _, Record};

/// How often due events are sent.
const STEP: Duration = Duration::from_millis(200);

/// One recording and its place in time.
struct Scene {
    /// State it is there to show.
    shows: &'static str,
    text: &'static str,
    /// Only so many lines of it: a recording that stops there.
    lines: usize,
    place: Place,
}

#[derive(Clone, Copy)]
enum Place {
    /// It ended so many seconds ago.
    Past(i64),
    /// Its writer died so many seconds ago, leaving its lock behind.
    Killed(i64),
    /// It begins now and takes so many times as long as it took.
    Live(i64),
}

const ALL: usize = usize::MAX;

macro_rules! recording {
    ($name:literal) => {
        include_str!(concat!("../../tests/fixtures/codex/", $name, ".rollout.jsonl"))
    };
}

const SCENES: &[Scene] = &[
    Scene { shows: "progressing", text: recording!("tests_commit"), lines: ALL, place: Place::Live(60) },
    Scene { shows: "running", text: recording!("loop_reads"), lines: ALL, place: Place::Live(60) },
    Scene {
        shows: "waiting_for_user",
        text: recording!("as_user_input.at_pending0"),
        lines: ALL,
        place: Place::Past(240),
    },
    Scene {
        shows: "waiting_for_user (probable)",
        text: recording!("tui_approval.at_pending"),
        lines: ALL,
        place: Place::Past(120),
    },
    Scene { shows: "stalled", text: recording!("hang_sigint"), lines: 14, place: Place::Past(720) },
    Scene { shows: "blocked", text: recording!("usage_limit"), lines: ALL, place: Place::Past(300) },
    Scene { shows: "completed", text: recording!("edit_ok"), lines: ALL, place: Place::Past(60) },
    Scene { shows: "failed", text: recording!("err_401"), lines: ALL, place: Place::Past(90) },
    Scene {
        shows: "failed (process_gone)",
        text: recording!("kill9_in_command"),
        lines: ALL,
        place: Place::Killed(150),
    },
    Scene { shows: "cancelled", text: recording!("sigint_in_command"), lines: ALL, place: Place::Past(200) },
    Scene { shows: "unknown", text: recording!("old_0.47.0_ok"), lines: ALL, place: Place::Past(900) },
    Scene { shows: "queued", text: recording!("as_idle_kill9"), lines: 1, place: Place::Past(5) },
];

/// Sends all scenes as they become due, until `stop`.
pub(super) async fn play(
    out: mpsc::Sender<Batch>,
    reducer: Arc<Reducer>,
    clock: crate::clock::Clock,
    mut stop: watch::Receiver<bool>,
) {
    let start = clock.now();
    let mut due: Vec<Event> = SCENES.iter().flat_map(|scene| events(scene, &reducer, start)).collect();
    due.sort_by_key(|e| e.time);
    due.reverse();
    let mut step = tokio::time::interval(STEP);
    while !*stop.borrow() && !due.is_empty() {
        tokio::select! {
            _ = step.tick() => {}
            _ = stop.changed() => break,
        }
        let now = clock.now();
        let mut batch = Batch::default();
        while due.last().is_some_and(|e| e.time <= Some(now)) {
            batch.events.extend(due.pop());
        }
        if !batch.events.is_empty() && out.send(batch).await.is_err() {
            break;
        }
    }
    let _ = stop.changed().await;
}

/// What the demo shows, for its greeting.
pub(super) fn shown() -> impl Iterator<Item = &'static str> {
    SCENES.iter().map(|s| s.shows)
}

/// The events of a scene at their place in time.
fn events(scene: &Scene, reducer: &Arc<Reducer>, now: Timestamp) -> Vec<Event> {
    let source = SourceId::from("codex");
    let mut decoder = Codex::new(source.clone(), reducer.clone());
    let mut events = Vec::new();
    for line in scene.text.lines().take(scene.lines) {
        // A broken line of a recording is part of it; the real source skips it too.
        let _ = decoder.decode(&Record { bytes: line.as_bytes(), observed: now }, &mut events);
    }
    let times = || events.iter().filter_map(|e| e.time);
    let (Some(first), Some(last)) = (times().min(), times().max()) else { return Vec::new() };
    let place = |t: Timestamp| match scene.place {
        Place::Past(seconds) | Place::Killed(seconds) => now.plus(t.since(last) - seconds * 1000),
        Place::Live(stretch) => now.plus(t.since(first) * stretch),
    };
    for event in &mut events {
        // What has no time of its own happened with the last thing that has.
        let time = place(event.time.unwrap_or(last));
        event.time = Some(time);
        event.observed = time.max(now);
        if let Fact::TurnEnded { reset: Some(reset), .. } = &mut event.fact {
            *reset = place(*reset);
        }
    }
    if let Place::Killed(_) = scene.place
        && let Some(session) = decoder.session()
    {
        let mut gone = Event::new(&source, session, now, Fact::Writer(Writer::Gone));
        gone.time = Some(place(last).plus(1000));
        events.push(gone);
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::reduce::Runners;
    use crate::event::{Capabilities, Capability};
    use crate::session::snapshot::{Snapshot, Tree};
    use crate::session::{Facts, Session, State};

    /// States of all scenes, `after_ms` into the demo.
    fn states(after_ms: i64) -> Vec<State> {
        let reducer = Arc::new(Reducer::new([1; 16], Runners::default()));
        let start = Timestamp::from_millis(1_800_000_000_000);
        let now = start.plus(after_ms);
        let sessions: Vec<_> = SCENES
            .iter()
            .map(|scene| {
                let mut list = events(scene, &reducer, start);
                list.retain(|e| e.time <= Some(now));
                list.sort_by_key(|e| e.time);
                let first = list.first().unwrap();
                let mut session =
                    Session::new(Facts::new(first.source.clone(), first.session.clone(), start));
                for event in list {
                    session.apply(event, start);
                }
                Some(session.facts().clone())
            })
            .collect();
        let tree = Arc::new(Tree::of(&sessions));
        let capabilities = Capabilities::of(&[Capability::Progress, Capability::Calls, Capability::Usage]);
        let capabilities = Arc::new([(SourceId::from("codex"), capabilities)].into());
        let snapshot = Snapshot { sessions, tree, capabilities, ..Snapshot::default() };
        (0..SCENES.len()).map(|slot| snapshot.derive(&snapshot.rollup(slot, now).unwrap()).state).collect()
    }

    #[test]
    fn every_state_shows_within_a_minute() {
        let mut seen: Vec<State> = (1..60).flat_map(|s| states(s * 1000)).collect();
        seen.sort();
        seen.dedup();
        let mut all = State::ALL.to_vec();
        all.sort();
        assert_eq!(seen, all);
    }

    #[test]
    fn each_scene_shows_what_it_is_there_for() {
        let early = states(25_000);
        for (scene, state) in SCENES.iter().zip(early) {
            assert_eq!(scene.shows.split(' ').next(), Some(state.as_str()));
        }
    }
}
