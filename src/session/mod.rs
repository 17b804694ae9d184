//! The fold: events of a session become facts, facts become a state when asked. No I/O, no clock, no metric names.
//!
//! [`facts`] holds what is known, [`apply`] changes it event by event, [`window`] makes the order of arrival
//! irrelevant within two seconds, [`signals`] tells loops from work, [`state`] derives the state at a moment, [`counts`] names what is counted over
//! all sessions, [`exemplars`] holds examples of it, [`notes`] says what spans are made of, [`snapshot`] is what views see.

pub mod apply;
pub mod counts;
pub mod exemplars;
pub mod explain;
pub mod facts;
pub mod notes;
pub mod orchestration;
mod packed;
pub mod rollup;
pub mod signals;
pub mod snapshot;
pub mod state;
pub mod story;
pub mod window;

pub use self::counts::{Aggregates, Count, Effects, Observation};
pub use self::facts::Facts;
pub use self::rollup::Rollup;
pub use self::signals::Signals;
pub use self::snapshot::Snapshot;
pub use self::state::{Derived, Reason, State, Thresholds, derive};
pub use self::window::Session;
