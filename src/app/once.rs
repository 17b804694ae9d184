//! `once`: one scan, its exposition for the textfile collector.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use super::{Core, open_store, renderer, running_sources, runtime, start_logging};
use crate::config::Config;
use crate::store::OpenError;
use crate::views::prometheus::Format;

/// A scan that takes longer shows what it has read so far.
const SCAN_WITHIN: Duration = Duration::from_secs(600);

/// Scans once and writes the metrics, whatever they say.
///
/// # Errors
/// When the state folder or the output cannot be used; never because of what was seen.
pub fn once(config: Config, output: Option<PathBuf>) -> anyhow::Result<()> {
    start_logging(&config);
    runtime()?.block_on(async {
        let on = running_sources(&config);
        let mut core = match open_store(&config) {
            Ok((opened, reducer)) => Core::start(&config, opened, reducer, &on)?,
            Err(e) if matches!(e.downcast_ref(), Some(OpenError::InUse)) => {
                tracing::warn!("another exporter uses the state folder; counters of this scan begin anew");
                Core::start_in_memory(&config, &on)?
            }
            Err(e) => return Err(e),
        };
        core.start_sources(&config);
        let mut snapshots = core.store.snapshots.clone();
        let scanned = tokio::time::timeout(SCAN_WITHIN, snapshots.wait_for(|s| s.scanned)).await;
        if scanned.is_err() {
            tracing::warn!("the scan is not over yet; its first part is shown");
        }
        let snapshot = core.store.snapshots.borrow().clone();
        let body = renderer(&config, &core).render(&snapshot, core.clock.now(), Format::Text);
        core.shut_down(Vec::new()).await?;
        match output {
            Some(path) => replace(&path, &body).with_context(|| format!("output {}", path.display())),
            None => std::io::stdout().write_all(&body).context("standard output"),
        }
    })
}

/// Writes beside the file and renames, so that a collector never reads half of it.
fn replace(path: &Path, body: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let beside = path.with_file_name(name);
    std::fs::write(&beside, body)?;
    std::fs::rename(&beside, path)
}
