//! The kernel's word that something happened below a folder, gathered for the one thread that looks. It only
//! wakes: what is true is always asked of the files themselves, so a lost or late word costs time, nothing else.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use notify::event::{EventKind, ModifyKind, RenameMode};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};

use super::FileId;

/// Paths kept between two looks; beyond it everything is looked at.
const MAX_PATHS: usize = 4096;

/// Wakes the thread that follows files: news of the kernel, or the end.
#[derive(Debug, Default)]
pub struct Wake {
    news: Mutex<News>,
    signal: Condvar,
}

/// What happened since the last look.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Paths, and whether what was there went away meanwhile (something new may be there by now).
    pub(super) paths: HashMap<PathBuf, bool>,
    /// The kernel dropped news, or there are too many of them.
    pub(super) rescan: bool,
    /// Time to end.
    pub(super) stop: bool,
}

/// The folders that are watched. Each is watched for itself, not recursively: one that may not be read degrades
/// its root only.
pub(super) struct Watch {
    watcher: Option<RecommendedWatcher>,
    folders: HashMap<PathBuf, FileId>,
}

// === impl Wake ===

impl Wake {
    /// Tells the thread to end.
    pub fn stop(&self) {
        self.lock().stop = true;
        self.signal.notify_all();
    }

    /// Waits for news, at most for `timeout`. `stop` stays set.
    pub(super) fn wait(&self, timeout: Duration) -> News {
        let news = self.lock();
        let quiet = |n: &mut News| n.paths.is_empty() && !n.rescan && !n.stop;
        let (mut news, _) =
            self.signal.wait_timeout_while(news, timeout, quiet).unwrap_or_else(PoisonError::into_inner);
        News {
            paths: std::mem::take(&mut news.paths),
            rescan: std::mem::take(&mut news.rescan),
            stop: news.stop,
        }
    }

    fn lock(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the watcher says. Access is left out: our own reading would wake us again.
    fn hear(&self, roots: &[PathBuf], event: notify::Result<notify::Event>) {
        let Ok(event) = event else {
            self.lock().rescan = true;
            self.signal.notify_all();
            return;
        };
        if matches!(event.kind, EventKind::Access(_)) {
            return;
        }
        let removed = matches!(
            event.kind,
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From))
        );
        let ours = |p: &PathBuf| roots.iter().any(|root| p.starts_with(root) || root.starts_with(p));
        let rescan = event.need_rescan();
        let paths: Vec<_> = event.paths.into_iter().filter(ours).collect();
        if !rescan && paths.is_empty() {
            return;
        }
        let mut news = self.lock();
        news.rescan |= rescan;
        for path in paths {
            if news.paths.len() >= MAX_PATHS {
                news.rescan = true;
                break;
            }
            *news.paths.entry(path).or_default() |= removed;
        }
        drop(news);
        self.signal.notify_all();
    }
}

// === impl Watch ===

impl Watch {
    /// A watch on nothing yet. Where the kernel gives none, every folder is "not watched".
    pub(super) fn new(roots: &[PathBuf], wake: &Arc<Wake>, poll_only: bool) -> Self {
        let (roots, wake) = (roots.to_vec(), wake.clone());
        let watcher = if poll_only {
            None
        } else {
            notify::recommended_watcher(move |event| wake.hear(&roots, event)).ok()
        };
        Self { watcher, folders: HashMap::new() }
    }

    /// Watches a folder, if it is not watched yet. False: it cannot be watched.
    pub(super) fn folder(&mut self, path: &Path, id: FileId) -> bool {
        let Some(watcher) = &mut self.watcher else { return false };
        match self.folders.get(path) {
            Some(known) if *known == id => return true,
            // Another folder under an old name: the old watch follows the old folder.
            Some(_) => drop(watcher.unwatch(path)),
            None => {}
        }
        match watcher.watch(path, RecursiveMode::NonRecursive) {
            Ok(()) => {
                self.folders.insert(path.to_owned(), id);
                true
            }
            // Gone since it was listed.
            Err(e) => matches!(e.kind, notify::ErrorKind::PathNotFound),
        }
    }

    /// A folder went away, and its watch with it. False: it was not watched.
    pub(super) fn forget(&mut self, path: &Path) -> bool {
        let known = self.folders.remove(path).is_some();
        if known && let Some(watcher) = &mut self.watcher {
            // The kernel has dropped it already where the folder is gone; where it was renamed it has not.
            let _ = watcher.unwatch(path);
        }
        known
    }
}
