//! Each recording as trees of spans: `tests/golden/spans/gobby`.

use super::daemon::RECORDINGS;
use super::replay::Replay;
use super::tree::{golden, told, trees};

#[test]
fn each_recording_is_the_trees_that_its_golden_shows() {
    for recording in RECORDINGS {
        let replay = Replay::of(recording);
        let events = replay.events.into_iter().map(|event| (event.observed, event)).collect();
        golden("gobby", recording, &trees(&told(events)));
    }
}
