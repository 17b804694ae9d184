//! The Claude Code decoder against every recording: what the notes beside them say, from records to states. How files
//! are followed is tested in `ingest` and `sources`.

#![allow(clippy::unwrap_used, reason = "a test may stop where its own story is wrong")]

mod claude {
    mod folded;
    mod moments;
    mod properties;
    mod public;
    mod recordings;
    mod scenarios;
    mod turns;
}
