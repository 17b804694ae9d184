//! The fold and the derived states, from hand-made events: what each sentence of the rules says, and what must hold
//! for any sequence. Recordings of real agents are tested with their sources.

#![allow(clippy::unwrap_used, reason = "a test may stop where its own story is wrong")]

mod fold {
    mod calls;
    mod labelled;
    mod loops;
    mod made;
    mod order;
    mod precedence;
    mod progress;
    mod properties;
    mod reports;
    mod states;
    mod tree;
}
