//! Generated files are what the tables say. `BLESS=1` writes them anew.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::path::Path;

use agent_session_exporter::{app, docs};

fn fresh(name: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{name} is stale: run `just docs` (BLESS=1 cargo test --test generated)");
}

#[test]
fn the_example_configuration_is_fresh() {
    fresh("agent-session-exporter.example.toml", &docs::example_config());
}

#[test]
fn the_blocks_of_the_readme_are_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    fresh("README.md", &docs::readme(&std::fs::read_to_string(path).unwrap()).unwrap());
}

#[test]
fn the_catalogue_of_metrics_is_fresh() {
    fresh("METRICS.md", &docs::metrics(&app::families()));
}
