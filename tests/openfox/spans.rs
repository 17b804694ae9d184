//! Every scenario as trees of spans: `tests/golden/spans/openfox`.

use super::play::Play;
use super::recorded::{Recording, names};
use super::tree::{golden, told, trees};

#[test]
fn each_scenario_is_the_trees_that_its_golden_shows() {
    for name in names() {
        let recording = Recording::of(&name);
        let play = Play::of(&recording);
        let events = play.events.into_iter().map(|event| (event.observed, event)).collect();
        golden("openfox", &name, &trees(&told(events)));
    }
}
