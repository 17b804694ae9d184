//! Times that the status file does not have: when a spec was begun and completed, from its `lifecycle.json`, and when the
//! agent that works on it was registered, from `agent-registry.json`. Names of specs never become part of a path: the
//! folder is listed, and what is in it is compared with them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::event::{SpecStatus, Timestamp};
use crate::ingest::poll::{Poll, Seen};

/// Entries of the folder of specs that are looked at.
const MAX_ENTRIES: usize = 10_000;

/// Times of one project, read anew for each look.
#[derive(Debug, Default)]
pub struct Times {
    /// Folders of specs by name.
    folders: Option<HashMap<String, PathBuf>>,
    /// Registered agents: spec, since when.
    agents: Option<Vec<(String, Timestamp)>>,
    specs: PathBuf,
    registry: PathBuf,
}

// === impl Times ===

impl Times {
    /// Those beside this status file; nothing is read yet.
    pub fn beside(status_file: &Path) -> Self {
        let config = status_file.parent().unwrap_or(Path::new(""));
        let base = config.parent().unwrap_or(Path::new(""));
        Self { specs: base.join("specs"), registry: config.join("agent-registry.json"), ..Self::default() }
    }

    /// When a spec came to stand where it does, if its files say so.
    pub fn of(&mut self, spec: &str, status: SpecStatus) -> Option<Timestamp> {
        let by_lifecycle = self.transition(spec, status);
        if status != SpecStatus::Running {
            return by_lifecycle;
        }
        by_lifecycle.or_else(|| {
            let agents = self.agents.get_or_insert_with(|| agents(&self.registry));
            agents.iter().filter(|(name, _)| name == spec).map(|(_, at)| *at).max()
        })
    }

    /// The newest transition to a status; one that failed stays in progress.
    fn transition(&mut self, spec: &str, status: SpecStatus) -> Option<Timestamp> {
        let word = match status {
            SpecStatus::Running => "in-progress",
            SpecStatus::Completed => "completed",
            _ => return None,
        };
        let folders = self.folders.get_or_insert_with(|| folders(&self.specs));
        let file = json(&folders.get(spec)?.join("lifecycle.json"))?;
        let transitions = file.get("transitions")?.as_array()?;
        let to_it = transitions.iter().filter(|t| t.get("to").and_then(Value::as_str) == Some(word));
        to_it.filter_map(|t| moment(t.get("timestamp")?)).max()
    }
}

fn folders(specs: &Path) -> HashMap<String, PathBuf> {
    let entries = fs::read_dir(specs).into_iter().flatten().take(MAX_ENTRIES).flatten();
    entries.filter_map(|e| Some((e.file_name().into_string().ok()?, e.path()))).collect()
}

fn agents(registry: &Path) -> Vec<(String, Timestamp)> {
    let file = json(registry);
    let agents = file.as_ref().and_then(|f| f.get("agents")?.as_object());
    let agent = |a: &Value| {
        let spec = a.get("currentTask")?.get("specName")?.as_str()?;
        Some((spec.to_owned(), moment(a.get("registeredAt")?)?))
    };
    agents.into_iter().flatten().take(MAX_ENTRIES).filter_map(|(_, a)| agent(a)).collect()
}

/// A small file as JSON; one that cannot be read only means that a time is known less well.
fn json(path: &Path) -> Option<Value> {
    match Poll::new(path.to_owned()).look(i64::MAX) {
        Seen::Content { bytes, .. } => serde_json::from_slice(&bytes).ok(),
        _ => None,
    }
}

fn moment(value: &Value) -> Option<Timestamp> {
    Timestamp::parse(value.as_str()?).ok()
}
