//! The Codex source from its files to states: every recording through decoder and fold, and through the runner on a
//! real folder. What single lines mean is tested in `codex_decode`, how files are followed in `ingest`.

#![allow(clippy::unwrap_used, reason = "a test may stop where its own story is wrong")]

mod common;
#[path = "common/exposition.rs"]
mod exposition;

mod sources {
    mod damaged;
    mod folded;
    mod history;
    mod home;
    mod loops;
    mod moments;
    mod recordings;
    mod reports;
    mod running;
    mod same;
}
