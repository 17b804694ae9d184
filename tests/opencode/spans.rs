//! Every scenario as trees of spans: `tests/golden/spans/opencode`.

use super::play::Play;
use super::recorded::scenarios;
use super::tree::{golden, told, trees};

#[test]
fn each_scenario_is_the_trees_that_its_golden_shows() {
    for scenario in scenarios() {
        golden("opencode", &scenario, &trees(&told(Play::whole(&scenario).events)));
    }
}
