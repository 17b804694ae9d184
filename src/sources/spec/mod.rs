//! Spec orchestrators (scene-capability-engine): the status file that each keeps in its project folder, its registry of
//! agents and the life cycles of its specs. Events of the engine, which no file holds, can be pushed: see the `push`
//! source.
//!
//! Format: `lib/orchestrator/status-monitor.js` of <https://github.com/heguangyong/scene-capability-engine>; 3.0.0 and
//! 3.6.65 are recorded. What the file tells and what not:
//! - it is truncated and rewritten about once a second, also when nothing changed: a file that is not rewritten belongs
//!   to an orchestrator that is over or dead, whatever it says;
//! - `stopped` is written into it by another process, and the engine writes `running` over that;
//! - counts are those of one run (`startedAt`), and what an agent says never reaches it.

mod lifecycle;
mod recorded;
mod run;
mod status;

use tokio::task::JoinHandle;

pub use self::lifecycle::Times;
pub use self::run::{Pace, start_in};
pub use self::status::{Rewrite, Status};
use super::recorded::Form;
use super::{Context, SourceDef};
use crate::event::{Capabilities, Capability};

/// The spec source in the list.
pub const DEF: SourceDef = SourceDef {
    name: "spec",
    about: "Spec orchestrators (scene-capability-engine), from the status file in each project folder named in roots; their \
            events can be pushed",
    maturity: "experimental",
    default_on: true,
    capabilities: Capabilities::of(&[Capability::Ends, Capability::Progress, Capability::Liveness]),
    of_some: Capabilities(0),
    looks_at: "",
    live: None,
    sees_stops: false,
    retells: &[],
    recorded: Form::Stamped(recorded::lines),
    start: Some(start),
};

/// Where the status file is below a project folder: up to 3.0, and since.
pub const STATUS_FILES: [&str; 2] =
    [".kiro/config/orchestration-status.json", ".sce/config/orchestration-status.json"];

fn start(context: Context) -> JoinHandle<()> {
    start_in(context, Pace::default())
}
