//! What the status file and the events of the scene-capability-engine have in common: texts it writes itself.
//!
//! Format: `lib/orchestrator` of <https://github.com/heguangyong/scene-capability-engine>, 3.0.0 and 3.6.65.

use crate::event::ErrorClass;

/// What the engine itself writes as a spec's error, by how it begins. Any other text is an agent's output, of which
/// nothing is guessed. A rate limit is known by the engine's own signal.
const ENGINE_ERRORS: &[(&str, ErrorClass)] = &[
    ("Timeout after ", ErrorClass::Timeout),
    ("Agent wait timeout after ", ErrorClass::Timeout),
    ("Skipped: dependency '", ErrorClass::Dependency),
    ("Exit code: ", ErrorClass::Exit),
];

/// The class of a spec's error.
pub(super) fn error_class(text: &str) -> ErrorClass {
    let own = ENGINE_ERRORS.iter().find(|(beginning, _)| text.starts_with(beginning));
    own.map_or(ErrorClass::Other, |(_, class)| *class)
}
