//! The state file: tables, opening, one transaction per commit. What is in it is versioned; a file that cannot be
//! read is set aside and a new one begins (a new counting epoch).

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{
    Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, StorageBackend, TableDefinition,
};

use super::spool;
use crate::event::{Cursor, Timestamp};
use crate::telemetry::OWN_TRACES;

/// Version of the tables and of what is in them. A file of another version is set aside.
pub const FORMAT: u32 = 7;
/// Pages redb may keep in memory.
const CACHE_BYTES: usize = 16 * 1024 * 1024;
/// Name of the state file in its folder.
pub const FILE: &str = "state.redb";
/// Name of the key of the content hashes, a file of its own.
pub const KEY_FILE: &str = "hash.key";

pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const JOURNAL: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("journal");
const SESSIONS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("sessions");
const TOMBSTONES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("tombstones");
const CURSORS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("cursors");
/// Traces under way, by source and session as rows of sessions are.
const TRACES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("traces");
const KNOWN_IDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("known_ids");

/// Where the bytes are; called again when the database has to be reopened.
pub type Backend = Arc<dyn Fn() -> io::Result<Box<dyn StorageBackend>> + Send + Sync>;

/// Why the store cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the state folder open.
    #[error("another exporter uses this state folder")]
    InUse,
    /// The folder or a file in it cannot be created or read.
    #[error("state folder cannot be used: {0}")]
    Io(#[from] io::Error),
    /// Even a new file could not be opened.
    #[error("state file cannot be opened: {0}")]
    Database(#[source] Box<DatabaseError>),
}

/// Why a transaction failed. The database is reopened and the same work is tried again.
#[derive(Debug, thiserror::Error)]
#[error("commit failed: {0}")]
pub struct CommitFailed(#[from] redb::Error);

/// The open database.
#[derive(Debug)]
pub struct Db {
    database: Option<Database>,
    backend: BackendHandle,
}

#[derive(Clone)]
struct BackendHandle(Backend);

/// What was found when the file was opened.
#[derive(Debug)]
pub struct Opened {
    /// The database.
    pub db: Db,
    /// Everything that was in it.
    pub contents: Contents,
    /// Whether an unreadable file was set aside.
    pub set_aside: bool,
}

/// Everything a state file holds.
#[derive(Debug, Default)]
pub struct Contents {
    /// When the store was created.
    pub created: Timestamp,
    /// Number of the next journal blob.
    pub next: u64,
    /// The sums at the last checkpoint.
    pub aggregates: Option<Vec<u8>>,
    /// Session rows at the last checkpoint.
    pub sessions: Vec<Vec<u8>>,
    /// Sessions that left memory while their files are there.
    pub tombstones: Vec<(Vec<u8>, Vec<u8>)>,
    /// Journal blobs since the last checkpoint, in order.
    pub journal: Vec<Vec<u8>>,
    /// Reading positions.
    pub cursors: Vec<(u64, Vec<u8>)>,
    /// Chunks of known ids.
    pub known_ids: Vec<(Vec<u8>, Vec<u8>)>,
    /// Traces under way.
    pub traces: Vec<(Vec<u8>, Vec<u8>)>,
    /// How much waits to be sent.
    pub spool: spool::Stored,
}

/// One transaction.
#[derive(Debug, Default)]
pub struct Work {
    /// Number of this commit's journal blob.
    pub seq: u64,
    /// The events of this commit; empty if there are none.
    pub journal: Vec<u8>,
    /// Reading positions.
    pub cursors: Vec<Cursor>,
    /// What makes the journal up to here superfluous.
    pub checkpoint: Option<Checkpoint>,
    /// What comes to wait to be sent, and what was.
    pub spool: spool::Change,
}

/// State as of a commit, written about once a second.
#[derive(Debug, Default)]
pub struct Checkpoint {
    /// Rows of sessions that changed; `None` removes one.
    pub sessions: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Tombstones that came or went.
    pub tombstones: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// The sums.
    pub aggregates: Vec<u8>,
    /// Chunks of known ids that changed; `None` removes one.
    pub known_ids: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Traces that changed; `None` removes one.
    pub traces: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

// === impl BackendHandle ===

impl std::fmt::Debug for BackendHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backend")
    }
}

/// A backend behind a box; redb takes it by value.
#[derive(Debug)]
struct Boxed(Box<dyn StorageBackend>);

impl StorageBackend for Boxed {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
    fn try_lock_range(
        &self,
        start: std::ops::Bound<u64>,
        end: std::ops::Bound<u64>,
    ) -> Result<bool, redb::BackendError> {
        self.0.try_lock_range(start, end)
    }
    fn try_lock_shared_range(
        &self,
        start: std::ops::Bound<u64>,
        end: std::ops::Bound<u64>,
    ) -> Result<bool, redb::BackendError> {
        self.0.try_lock_shared_range(start, end)
    }
    fn unlock_range(
        &self,
        start: std::ops::Bound<u64>,
        end: std::ops::Bound<u64>,
    ) -> Result<(), redb::BackendError> {
        self.0.unlock_range(start, end)
    }
}

/// Makes the state folder, 0700, and returns the key of the content hashes, made on first use.
///
/// # Errors
/// When the folder or the key cannot be made or read.
pub fn prepare_folder(folder: &Path) -> io::Result<[u8; 16]> {
    if !folder.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let path = folder.join(KEY_FILE);
    match read_key(&path) {
        // Half a key is what a crash of the whole machine may leave of a new file; nothing was hashed with it.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof) => {
            make_key(folder, &path, e.kind() == io::ErrorKind::UnexpectedEof)?;
            read_key(&path)
        }
        known => known,
    }
}

/// The key of a folder, if it has one; none is made.
pub fn known_key(folder: &Path) -> Option<[u8; 16]> {
    read_key(&folder.join(KEY_FILE)).ok()
}

fn read_key(path: &Path) -> io::Result<[u8; 16]> {
    let mut key = [0; 16];
    let mut file = fs::File::open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.read_exact(&mut key)?;
    Ok(key)
}

/// Makes a key under another name first, so that a crash never leaves half of one; of two processes that start at
/// once the first one's key stays.
fn make_key(folder: &Path, path: &Path, replace: bool) -> io::Result<()> {
    let mut key = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
    let new = folder.join(format!("{KEY_FILE}.{}", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    io::Write::write_all(&mut file, &key)?;
    file.sync_all()?;
    if replace {
        fs::rename(&new, path)?;
    } else {
        let linked = fs::hard_link(&new, path);
        fs::remove_file(&new)?;
        match linked {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
    }
    sync_folder(folder)
}

/// Makes names in a folder durable: a file whose name is lost is lost.
fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

/// A store that ends with the process.
pub fn memory_backend() -> Backend {
    Arc::new(|| Ok(Box::new(InMemoryBackend::new()) as Box<dyn StorageBackend>))
}

/// The state file of a folder as a backend.
pub fn file_backend(folder: &Path) -> Backend {
    let folder = folder.to_owned();
    Arc::new(move || {
        let path = folder.join(FILE);
        let is_new = !path.exists();
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)?;
        // A file that somebody widened is narrowed again.
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        let backend = FileBackend::new(file).map_err(|e| match e {
            DatabaseError::DatabaseAlreadyOpen => io::Error::from(io::ErrorKind::WouldBlock),
            other => io::Error::other(other),
        })?;
        if is_new {
            sync_folder(&folder)?;
        }
        Ok(Box::new(backend) as Box<dyn StorageBackend>)
    })
}

/// Opens the state file of a folder. An unreadable one is set aside as `state.redb.unreadable-<time>`.
///
/// # Errors
/// When another process uses it, or the folder cannot be used.
pub fn open_folder(folder: &Path, key_check: u64, now: Timestamp) -> Result<Opened, OpenError> {
    let backend = file_backend(folder);
    match open(&backend, key_check, now) {
        Ok(Ok(opened)) => Ok(opened),
        Err(OpenError::InUse) => Err(OpenError::InUse),
        Ok(Err(Unreadable)) | Err(OpenError::Database(_)) => {
            let aside = folder.join(format!("{FILE}.unreadable-{}", now.as_millis()));
            fs::rename(folder.join(FILE), &aside)?;
            sync_folder(folder)?;
            tracing::error!("the state file cannot be read and was set aside; counters begin anew");
            let opened = open(&backend, key_check, now)?
                .map_err(|_| io::Error::other("a new state file is unreadable"))?;
            Ok(Opened { set_aside: true, ..opened })
        }
        Err(e) => Err(e),
    }
}

/// The file is no state file of this version and key.
#[derive(Debug)]
pub struct Unreadable;

/// Opens a backend and reads all of it.
///
/// # Errors
/// The outer error: it cannot be opened at all. The inner one: it is open, but not a state file of this format.
pub fn open(
    backend: &Backend,
    key_check: u64,
    now: Timestamp,
) -> Result<Result<Opened, Unreadable>, OpenError> {
    let database = open_database(backend)?;
    let db = Db { database: Some(database), backend: BackendHandle(backend.clone()) };
    // As when opening, redb may panic over what it reads.
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| db.read_all(key_check, now)));
    match read {
        Ok(Ok(Some(contents))) => Ok(Ok(Opened { db, contents, set_aside: false })),
        Ok(Ok(None)) => Ok(Err(Unreadable)),
        Ok(Err(redb::Error::Io(e))) if is_no_damage(&e) => Err(OpenError::Io(e)),
        Ok(Err(e)) => {
            tracing::warn!(error = %e, "state file is damaged");
            Ok(Err(Unreadable))
        }
        Err(_) => Ok(Err(Unreadable)),
    }
}

/// Whether an error says something about the disk or the rights, nothing about the file's content: a good file must
/// not be set aside because the disk is full.
fn is_no_damage(e: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        e.kind(),
        Kind::StorageFull
            | Kind::QuotaExceeded
            | Kind::FileTooLarge
            | Kind::ReadOnlyFilesystem
            | Kind::PermissionDenied
            | Kind::OutOfMemory
            | Kind::Interrupted
            | Kind::TimedOut
    )
}

fn open_database(backend: &Backend) -> Result<Database, OpenError> {
    let bytes = backend().map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => OpenError::InUse,
        _ => OpenError::Io(e),
    })?;
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    // A damaged file may make redb panic instead of answering; that too is an unreadable file.
    let opened =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.create_with_backend(Boxed(bytes))));
    match opened {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => Err(OpenError::InUse),
        Ok(Err(DatabaseError::Storage(redb::StorageError::Io(e)))) if is_no_damage(&e) => {
            Err(OpenError::Io(e))
        }
        Ok(Err(e)) => Err(OpenError::Database(Box::new(e))),
        Err(_) => {
            let damaged = redb::StorageError::Corrupted("panic while opening".to_owned());
            Err(OpenError::Database(Box::new(DatabaseError::Storage(damaged))))
        }
    }
}

// === impl Db ===

impl Db {
    /// Writes one transaction and waits until it is on disk. After a failure the database is reopened at the next call.
    /// Returns what the spool became, if it changed.
    ///
    /// # Errors
    /// The work is not durable; nothing of it is.
    pub fn commit(&mut self, work: &Work) -> Result<Option<spool::Written>, CommitFailed> {
        let (cursors, checkpoint) = (work.cursors.len() as i64, work.checkpoint.is_some());
        let _own = tracing::info_span!(target: OWN_TRACES, "commit", cursors, checkpoint).entered();
        // Out of its place while it is written: after an error or a panic it is not put back.
        let database = match self.database.take() {
            Some(database) => database,
            None => open_database(&self.backend.0).map_err(|e| match e {
                OpenError::InUse => redb::Error::DatabaseAlreadyOpen,
                OpenError::Io(e) => redb::Error::Io(e),
                OpenError::Database(e) => redb::Error::from(*e),
            })?,
        };
        let written = write(&database, work)?;
        self.database = Some(database);
        Ok(written)
    }

    /// The state as of the last commit, to read from while others are written.
    pub(super) fn begin_read(&self) -> Result<redb::ReadTransaction, redb::Error> {
        Ok(self.database.as_ref().ok_or(redb::Error::DatabaseClosed)?.begin_read()?)
    }

    fn read_all(&self, key_check: u64, now: Timestamp) -> Result<Option<Contents>, redb::Error> {
        let db = self.database.as_ref().ok_or(redb::Error::DatabaseClosed)?;
        let identity: Vec<u8> = [&FORMAT.to_le_bytes()[..], &key_check.to_le_bytes()[..]].concat();
        let fresh = db.begin_read()?.list_tables()?.next().is_none();
        if fresh {
            let tx = db.begin_write()?;
            {
                let mut meta = tx.open_table(META)?;
                meta.insert("identity", identity.as_slice())?;
                meta.insert("created", now.as_millis().to_le_bytes().as_slice())?;
                tx.open_table(JOURNAL)?;
                tx.open_table(SESSIONS)?;
                tx.open_table(TOMBSTONES)?;
                tx.open_table(CURSORS)?;
                tx.open_table(KNOWN_IDS)?;
                tx.open_table(TRACES)?;
            }
            spool::create(&tx)?;
            tx.commit()?;
            return Ok(Some(Contents { created: now, ..Contents::default() }));
        }
        let tx = db.begin_read()?;
        let meta = tx.open_table(META)?;
        let known = meta.get("identity")?.is_some_and(|v| v.value() == identity.as_slice());
        let created = meta.get("created")?.and_then(|v| <[u8; 8]>::try_from(v.value()).ok());
        let Some(created) = created.filter(|_| known) else { return Ok(None) };
        let number = |name: &str| -> Result<Option<u64>, redb::Error> {
            Ok(meta.get(name)?.and_then(|v| <[u8; 8]>::try_from(v.value()).ok()).map(u64::from_le_bytes))
        };
        let mut contents = Contents {
            created: Timestamp::from_millis(i64::from_le_bytes(created)),
            next: number("next")?.unwrap_or(0),
            aggregates: meta.get("aggregates")?.map(|v| v.value().to_vec()),
            ..Contents::default()
        };
        for row in tx.open_table(JOURNAL)?.iter()? {
            let (seq, blob) = row?;
            contents.next = contents.next.max(seq.value() + 1);
            contents.journal.push(blob.value().to_vec());
        }
        for row in tx.open_table(SESSIONS)?.iter()? {
            contents.sessions.push(row?.1.value().to_vec());
        }
        for row in tx.open_table(TOMBSTONES)?.iter()? {
            let (key, value) = row?;
            contents.tombstones.push((key.value().to_vec(), value.value().to_vec()));
        }
        for row in tx.open_table(CURSORS)?.iter()? {
            let (key, value) = row?;
            contents.cursors.push((key.value(), value.value().to_vec()));
        }
        for row in tx.open_table(TRACES)?.iter()? {
            let (key, value) = row?;
            contents.traces.push((key.value().to_vec(), value.value().to_vec()));
        }
        for row in tx.open_table(KNOWN_IDS)?.iter()? {
            let (key, value) = row?;
            contents.known_ids.push((key.value().to_vec(), value.value().to_vec()));
        }
        contents.spool = spool::open(db)?;
        Ok(Some(contents))
    }
}

fn write(db: &Database, work: &Work) -> Result<Option<spool::Written>, redb::Error> {
    let tx = db.begin_write()?;
    {
        let mut cursors = tx.open_table(CURSORS)?;
        for cursor in &work.cursors {
            match &cursor.value {
                Some(value) => drop(cursors.insert(cursor.key, value.as_slice())?),
                None => drop(cursors.remove(cursor.key)?),
            }
        }
        match &work.checkpoint {
            // The rows hold what the blob would say; the journal begins anew.
            Some(checkpoint) => {
                tx.open_table(JOURNAL)?.retain(|_, _| false)?;
                let mut meta = tx.open_table(META)?;
                meta.insert("next", (work.seq + 1).to_le_bytes().as_slice())?;
                meta.insert("aggregates", checkpoint.aggregates.as_slice())?;
                for (table, rows) in [
                    (SESSIONS, &checkpoint.sessions),
                    (TOMBSTONES, &checkpoint.tombstones),
                    (KNOWN_IDS, &checkpoint.known_ids),
                    (TRACES, &checkpoint.traces),
                ] {
                    let mut table = tx.open_table(table)?;
                    for (key, row) in rows {
                        match row {
                            Some(row) => drop(table.insert(key.as_slice(), row.as_slice())?),
                            None => drop(table.remove(key.as_slice())?),
                        }
                    }
                }
            }
            None if work.journal.is_empty() => {}
            None => drop(tx.open_table(JOURNAL)?.insert(work.seq, work.journal.as_slice())?),
        }
    }
    let written = spool::write(&tx, &work.spool)?;
    tx.commit()?;
    Ok(written)
}

/// Size of the state file.
pub fn file_size(folder: &Path) -> u64 {
    fs::metadata(folder.join(FILE)).map_or(0, |m| m.len())
}

/// Path of the state file, for tests and `check`.
pub fn file_path(folder: &Path) -> PathBuf {
    folder.join(FILE)
}
