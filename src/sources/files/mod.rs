//! The runner shared by sources that read an agent's files: followed files in, batches with their cursors out.
//! What a record means is the decoder's business, what a file is `ingest`'s.

mod feed;
pub mod objects;
mod owners;
mod run;
mod saved;
mod stream;
mod writer;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::task::JoinHandle;

pub use self::owners::{Claim, OwnerId, Owners, Rank, Spent, Tokens};
pub(super) use self::run::store_of;
use super::{Context, Decode};
use crate::event::{Event, Reducer, SourceId, Timestamp};
use crate::ingest::locks::Probe;
use crate::ingest::{Kernel, Wake};

/// Bytes of a file's head that a source may look at before it decodes.
pub const PEEK: usize = 64 << 10;

/// What a decoder is made from.
#[derive(Clone, Debug)]
pub struct Opening<'a> {
    /// Name of the source.
    pub source: SourceId,
    /// Hashes and classes for what may not leave.
    pub reducer: Arc<Reducer>,
    /// The id in the file's name, for streams whose head says none.
    pub name: Option<&'a str>,
    /// Whose records are whose in this home.
    pub owners: Arc<Owners>,
    /// The first [`PEEK`] bytes of the file, where the source asked for them.
    pub head: &'a [u8],
}

/// Makes a decoder for a stream that is read from its head.
pub type New = fn(&Opening<'_>) -> Box<dyn Decode>;
/// Makes a decoder from its checkpoint; `None` where the checkpoint is of no use.
pub type Restore = fn(&Opening<'_>, &[u8]) -> Option<Box<dyn Decode>>;
/// Begins to look at an agent's folder, with what an earlier run kept.
pub type NewLive = fn(&Path, SourceId, Arc<Reducer>, Option<&[u8]>) -> Box<dyn Live>;

/// What an agent says about its sessions right now, beside its records: looked at every second, and at once when
/// something happens in one of the source's folders.
pub trait Live: Send {
    /// Looks, and says what is news. `now` is the moment of looking.
    fn look(&mut self, now: Timestamp, out: &mut Vec<Event>);
    /// What has to survive a restart, if it changed since the last call.
    fn changed(&mut self) -> Option<Vec<u8>>;
}

/// A source that is files below a folder of the user's home.
#[derive(Clone, Copy)]
pub struct FileSource {
    /// Name of the source.
    pub name: &'static str,
    /// The agent's folder in a user's home (`.codex`). [`Context::roots`] are such folders themselves.
    pub folder: &'static str,
    /// Folders in it that are searched.
    pub roots: &'static [&'static str],
    /// Whether a file of this name is a stream of records; compressed ones end with `.zst`.
    pub accepts: fn(&OsStr) -> bool,
    /// The name of the stream a file belongs to.
    pub stream: fn(&Path) -> Option<String>,
    /// The id in a file's name that its lock file is called by.
    pub stream_id: fn(&OsStr) -> Option<String>,
    /// Folder with a `<id>.lock` for each session that has a writer.
    pub lock_dir: Option<&'static str>,
    /// Whether decoders want to see the head of their file first.
    pub peeks: bool,
    /// What the agent says of its sessions beside the streams.
    pub live: Option<NewLive>,
    /// A decoder at the head of a stream.
    pub new: New,
    /// A decoder from its checkpoint.
    pub restore: Restore,
}

/// What depends on the machine rather than on the source.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Where locks are asked for.
    pub probe: Probe,
    /// Do without the kernel's word about changes.
    pub poll_only: bool,
    /// What the kernel can tell about changes.
    pub kernel: Kernel,
}

/// Starts a source; the task ends when `stop` of the context turns true or nobody takes its batches any more.
pub fn start(source: FileSource, context: Context) -> JoinHandle<()> {
    start_in(source, context, Surroundings::default())
}

/// As [`start`], in other surroundings.
pub fn start_in(source: FileSource, context: Context, surroundings: Surroundings) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut stop = context.stop.clone();
        let wake = Arc::new(Wake::default());
        let for_run = wake.clone();
        // Reading and decoding block, and go on for as long as the source does.
        let mut run = tokio::task::spawn_blocking(move || {
            run::Run::new(source, context, surroundings, for_run).until_stopped();
        });
        tokio::select! {
            ended = &mut run => return report(source.name, ended),
            // An error means that whoever could stop us is gone.
            _ = stop.wait_for(|stop| *stop) => wake.stop(),
        }
        report(source.name, run.await);
    })
}

fn report(source: &str, ended: Result<(), tokio::task::JoinError>) {
    if ended.is_err_and(|e| e.is_panic()) {
        tracing::error!(source, "reading files ended by a bug");
    }
}

/// The agent's folders: in each home, then the configured ones; each once.
fn agent_folders(source: &FileSource, context: &Context) -> Vec<PathBuf> {
    let homes = context.homes.iter().map(|home| home.join(source.folder));
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in homes.chain(context.roots.iter().cloned()) {
        let same = |other: &PathBuf| *other == folder || same_folder(other, &folder);
        if !folders.iter().any(same) {
            folders.push(folder);
        }
    }
    folders
}

fn same_folder(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
