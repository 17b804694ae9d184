//! The live registry: `sessions/<pid>.json` below the agent's folder, one small file per running process, rewritten
//! whenever its status changes.

/// What the registry said at the last look.
#[derive(Debug)]
pub struct Registry {}
