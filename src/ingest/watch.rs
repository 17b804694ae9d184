//! The kernel's word that something happened below a folder, gathered for the one thread that looks. It only
//! wakes: what is true is always asked of the files themselves, so a lost or late word costs time, nothing else.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use notify::event::{EventKind, ModifyKind, RenameMode};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};

use super::{FileId, network};

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

/// What the kernel can tell about changes; tests put other answers here.
#[derive(Clone)]
pub struct Kernel {
    /// Whether a folder lies on a file system where others write unheard.
    pub is_network: Arc<dyn Fn(&Path) -> bool + Send + Sync>,
    /// Most folders it watches for us, beside what it decides itself; with 0 it gives no means to watch at all.
    pub room: Arc<dyn Fn() -> usize + Send + Sync>,
}

/// Why a root is polled, although it may be watched in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// We were told to.
    Asked,
    /// The kernel gives no more watches, or none at all.
    NoWatches,
    /// Others write there, unheard.
    Network,
}

/// The folders that are watched. Each is watched for itself, not recursively: one that may not be read degrades
/// its root only.
pub(super) struct Watch {
    roots: Vec<PathBuf>,
    wake: Arc<Wake>,
    poll_only: bool,
    kernel: Kernel,
    watcher: Option<RecommendedWatcher>,
    folders: HashMap<PathBuf, FileId>,
    /// By device: the question may go over the network.
    network: HashMap<u64, bool>,
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

// === impl Kernel ===

impl Default for Kernel {
    fn default() -> Self {
        Self { is_network: Arc::new(network::is_network), room: Arc::new(|| usize::MAX) }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

// === impl Polled ===

impl Polled {
    /// For messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked to",
            Self::NoWatches => "the kernel gives no watches (see fs.inotify.max_user_watches)",
            Self::Network => "network file system",
        }
    }
}

// === impl Watch ===

impl Watch {
    /// A watch on nothing yet. Where the kernel gives none, every folder is polled.
    pub(super) fn new(roots: &[PathBuf], wake: &Arc<Wake>, poll_only: bool, kernel: Kernel) -> Self {
        let mut watch = Self {
            roots: roots.to_vec(),
            wake: wake.clone(),
            poll_only,
            kernel,
            watcher: None,
            folders: HashMap::new(),
            network: HashMap::new(),
        };
        watch.revive();
        watch
    }

    /// Asks the kernel again where it gave nothing: others may have ended. A refusal costs one system call.
    pub(super) fn revive(&mut self) {
        if self.watcher.is_some() || self.poll_only || (self.kernel.room)() == 0 {
            return;
        }
        let (roots, wake) = (self.roots.clone(), self.wake.clone());
        self.watcher = notify::recommended_watcher(move |event| wake.hear(&roots, event)).ok();
    }

    /// Watches a folder, if it is not watched yet. Says why it has to be polled, if it has.
    pub(super) fn folder(&mut self, path: &Path, id: FileId) -> Option<Polled> {
        let Some(watcher) = &mut self.watcher else {
            return Some(if self.poll_only { Polled::Asked } else { Polled::NoWatches });
        };
        let is_network = *self.network.entry(id.dev).or_insert_with(|| (self.kernel.is_network)(path));
        // Watched all the same: what this machine writes is heard at once.
        let polled = is_network.then_some(Polled::Network);
        match self.folders.get(path) {
            Some(known) if *known == id => return polled,
            // Another folder under an old name: the old watch follows the old folder.
            Some(_) => drop(watcher.unwatch(path)),
            None => {}
        }
        if self.folders.len() >= (self.kernel.room)() {
            return Some(Polled::NoWatches);
        }
        match watcher.watch(path, RecursiveMode::NonRecursive) {
            Ok(()) => {
                self.folders.insert(path.to_owned(), id);
                polled
            }
            // Gone since it was listed, or not to be listed either: the folder above tells when that changes.
            Err(e) if is_no_folder(&e) => polled,
            Err(_) => Some(Polled::NoWatches),
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

fn is_no_folder(error: &notify::Error) -> bool {
    match &error.kind {
        notify::ErrorKind::PathNotFound => true,
        notify::ErrorKind::Io(e) => {
            matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
        }
        _ => false,
    }
}
