//! The spool: what is over and waits to be sent, in the order in which it came. It is written with the commit that made it
//! and leaves with a later one, after whoever sends it was told that it arrived. It is bounded: beyond that the oldest
//! is dropped and counted. Only counts are held in memory.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use redb::{
    Database, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _, TableDefinition,
    TableError, WriteTransaction,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::db::{Db, META};
use crate::event::reduce::stable_hash;
use crate::spans::{Key, Outgoing, Signal};
use crate::telemetry::Telemetry;

const SPOOL: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("spool");
/// Rows looked through in one go for those of one signal; between two such the transaction is given back.
const LOOK_THROUGH: usize = 8_192;
/// Most rows fit into so many bytes.
const ROOM: usize = 384;
/// Bytes of the rows together.
const BYTES: &str = "spool_bytes";
/// Says whether rows can be read: they name attributes by their place in the table of names.
const FORM: &str = "spool_form";
/// Goes up when the types of what is sent change.
const VERSION: u32 = 1;

/// What is kept until it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Whether spans are.
    pub spans: bool,
    /// Whether log records are.
    pub logs: bool,
    /// Items at most.
    pub max_items: u64,
    /// Bytes at most.
    pub max_bytes: u64,
}

/// How much waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Number of the next item.
    pub next: u64,
    /// Items that wait.
    pub items: u64,
}

/// What one commit does to the spool.
#[derive(Debug, Default)]
pub struct Change {
    /// Items with their numbers, as bytes.
    pub added: Vec<(u64, Vec<u8>)>,
    /// Items that left.
    pub removed: Vec<u64>,
    /// Items and bytes at most.
    pub most: Option<(u64, u64)>,
}

/// What a commit did to the spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    items: u64,
    dropped: [u64; 2],
    /// Spans among what was dropped.
    lost: Vec<[u8; 8]>,
}

/// What the owner is told; it says when that is durable.
#[derive(Debug)]
pub struct Message {
    /// Items from elsewhere.
    pub(super) put: Vec<Outgoing>,
    left: Vec<u64>,
    /// Spans among what left that the collector did not take.
    lost: Vec<[u8; 8]>,
    done: oneshot::Sender<()>,
}

/// What whoever sends has to know between two reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Items that wait.
    pub items: u64,
    /// Number of the next item: what it grows by came since.
    pub next: u64,
    /// Nothing more will come.
    pub last: bool,
}

/// One item that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// Its number.
    pub number: u64,
    /// The item; none if it cannot be read.
    pub item: Option<Outgoing>,
}

/// The oldest items of a signal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Oldest {
    /// The items, oldest first.
    pub items: Vec<Waiting>,
    /// Whether there are others behind them.
    pub more: bool,
}

/// The state file cannot be read now; a later try may succeed.
#[derive(Debug, thiserror::Error)]
#[error("the spool cannot be read: {0}")]
pub struct ReadFailed(Box<redb::Error>);

/// Reads what waits, oldest first, and tells the owner what left. The owner does not end before all readers are dropped.
#[derive(Clone, Debug)]
pub struct SpoolReader {
    db: Arc<Mutex<Db>>,
    out: mpsc::UnboundedSender<Message>,
    state: watch::Receiver<State>,
}

/// The owner's side.
pub(super) struct Spool {
    keep: Option<Keep>,
    next: u64,
    change: Change,
    bytes: usize,
    /// Spans that left without being taken, since the last commit.
    lost: Vec<[u8; 8]>,
    /// Who waits for the next commit, and for the one being written.
    told: Vec<oneshot::Sender<()>>,
    in_commit: Vec<oneshot::Sender<()>>,
    state: watch::Sender<State>,
}

/// The form of the rows.
fn form() -> [u8; 8] {
    let names: Vec<&str> = Key::ALL.iter().map(|k| k.as_str()).collect();
    stable_hash((VERSION, names)).to_le_bytes()
}

/// The table in a new file.
pub(super) fn create(tx: &WriteTransaction) -> Result<(), redb::Error> {
    tx.open_table(SPOOL)?;
    tx.open_table(META)?.insert(FORM, form().as_slice())?;
    Ok(())
}

/// What waits in a file. Rows of another form than today's can only be left out.
pub(super) fn open(db: &Database) -> Result<Stored, redb::Error> {
    let tx = db.begin_read()?;
    let readable = tx.open_table(META)?.get(FORM)?.is_some_and(|v| v.value() == form());
    if !readable {
        let tx = db.begin_write()?;
        let lost = tx.open_table(SPOOL)?.len()?;
        tx.delete_table(SPOOL)?;
        create(&tx)?;
        tx.open_table(META)?.remove(BYTES)?;
        tx.commit()?;
        if lost > 0 {
            tracing::error!(items = lost, "what waited to be sent is of another version and is left out");
        }
        return Ok(Stored::default());
    }
    let table = tx.open_table(SPOOL)?;
    let next = table.last()?.map_or(0, |(number, _)| number.value() + 1);
    Ok(Stored { next, items: table.len()? })
}

/// The spool's part of a transaction.
pub(super) fn write(tx: &WriteTransaction, change: &Change) -> Result<Option<Written>, redb::Error> {
    if change.added.is_empty() && change.removed.is_empty() {
        return Ok(None);
    }
    let mut table = tx.open_table(SPOOL)?;
    let mut meta = tx.open_table(META)?;
    let known = meta.get(BYTES)?.and_then(|v| <[u8; 8]>::try_from(v.value()).ok());
    let mut bytes = known.map_or(0, u64::from_le_bytes);
    for number in &change.removed {
        // What the bound dropped meanwhile is no longer there.
        if let Some(row) = table.remove(number)? {
            bytes = bytes.saturating_sub(row.value().len() as u64);
        }
    }
    for (number, row) in &change.added {
        table.insert(number, row.as_slice())?;
        bytes += row.len() as u64;
    }
    let (mut dropped, mut lost) = ([0; 2], Vec::new());
    if let Some((max_items, max_bytes)) = change.most {
        while table.len()? > max_items || bytes > max_bytes {
            let Some((_, row)) = table.pop_first()? else { break };
            bytes = bytes.saturating_sub(row.value().len() as u64);
            dropped[usize::from(signal_of(row.value()) == Signal::Logs)] += 1;
            lost.extend(span_of(row.value()));
        }
    }
    meta.insert(BYTES, bytes.to_le_bytes().as_slice())?;
    Ok(Some(Written { items: table.len()?, dropped, lost }))
}

/// What a row is, without reading all of it: its first byte is the number of the variant.
fn signal_of(row: &[u8]) -> Signal {
    if row.first() == Some(&1) { Signal::Logs } else { Signal::Traces }
}

/// The span in a row, if it is one.
fn span_of(row: &[u8]) -> Option<[u8; 8]> {
    match postcard::from_bytes(row) {
        Ok(Outgoing::Span(span)) => Some(span.context.span.0),
        _ => None,
    }
}

// === impl Spool ===

impl Spool {
    pub(super) fn new(keep: Option<Keep>, stored: Stored, telemetry: &Telemetry) -> Self {
        if let Some(keep) = keep {
            for signal in [Signal::Traces, Signal::Logs].into_iter().filter(|s| keep.takes(*s)) {
                // There from the beginning, so that the first drop is an increase.
                telemetry.otlp_items.with_label_values(&[signal.as_str(), "dropped"]).inc_by(0);
            }
        }
        telemetry.otlp_spool_items.set(i64::try_from(stored.items).unwrap_or(i64::MAX));
        Self {
            keep,
            next: stored.next,
            change: Change::default(),
            bytes: 0,
            lost: Vec::new(),
            told: Vec::new(),
            in_commit: Vec::new(),
            state: watch::Sender::new(State { items: stored.items, next: stored.next, last: false }),
        }
    }

    /// A reader, and where it tells what left.
    pub(super) fn reader(&self, db: Arc<Mutex<Db>>) -> (SpoolReader, mpsc::UnboundedReceiver<Message>) {
        let (out, left) = mpsc::unbounded_channel();
        (SpoolReader { db, out, state: self.state.subscribe() }, left)
    }

    /// Adds to the next commit what is kept at all.
    pub(super) fn add(&mut self, items: impl IntoIterator<Item = Outgoing>) {
        let Some(keep) = self.keep else { return };
        for item in items.into_iter().filter(|item| keep.takes(item.signal())) {
            let room = Vec::with_capacity(ROOM);
            let row =
                postcard::to_extend(&item, room).expect("spans are made of types that always serialise");
            self.bytes += row.len();
            self.change.added.push((self.next, row));
            self.next += 1;
        }
    }

    /// Removes with the next commit what left. What was put has to be added before.
    pub(super) fn hear(&mut self, message: Message) {
        self.change.removed.extend(message.left);
        self.lost.extend(message.lost);
        self.told.push(message.done);
    }

    pub(super) fn has_work(&self) -> bool {
        !self.change.added.is_empty() || !self.told.is_empty()
    }

    /// Bytes of the next commit so far.
    pub(super) const fn pending_bytes(&self) -> usize {
        self.bytes
    }

    /// What the commit that now starts has to do. After a failure the same is tried again.
    pub(super) fn take(&mut self) -> Change {
        self.in_commit.append(&mut self.told);
        self.bytes = 0;
        self.change.most = self.keep.map(|keep| (keep.max_items, keep.max_bytes));
        std::mem::take(&mut self.change)
    }

    /// What follows from a commit: the spans that nobody will find.
    pub(super) fn committed(&mut self, written: Option<Written>, telemetry: &Telemetry) -> HashSet<[u8; 8]> {
        let mut lost: HashSet<_> = self.lost.drain(..).collect();
        if let Some(written) = written {
            lost.extend(written.lost);
            telemetry.otlp_spool_items.set(i64::try_from(written.items).unwrap_or(i64::MAX));
            for (signal, n) in [Signal::Traces, Signal::Logs].into_iter().zip(written.dropped) {
                if n > 0 {
                    telemetry.otlp_items.with_label_values(&[signal.as_str(), "dropped"]).inc_by(n);
                }
            }
            let next = self.next;
            self.state.send_modify(|state| {
                state.items = written.items;
                state.next = next;
            });
        }
        for done in self.in_commit.drain(..) {
            // Who told it may have gone without waiting.
            let _ = done.send(());
        }
        lost
    }

    /// Says that nothing more will come.
    pub(super) fn say_last(&self) {
        self.state.send_if_modified(|state| !std::mem::replace(&mut state.last, true));
    }
}

// === impl Keep ===

impl Keep {
    const fn takes(self, signal: Signal) -> bool {
        match signal {
            Signal::Traces => self.spans,
            Signal::Logs => self.logs,
            Signal::Metrics => false,
        }
    }
}

// === impl SpoolReader ===

impl SpoolReader {
    /// The oldest items of a signal behind `after`, up to so many and about so many bytes of them as they lie there.
    ///
    /// # Errors
    /// The state file cannot be read now.
    pub async fn oldest(
        &self,
        signal: Signal,
        after: Option<u64>,
        most: usize,
        most_bytes: usize,
    ) -> Result<Oldest, ReadFailed> {
        let db = self.db.clone();
        let read = move || read(&db, signal, after, most, most_bytes);
        match tokio::task::spawn_blocking(read).await {
            Ok(read) => read.map_err(|e| ReadFailed(Box::new(e))),
            Err(_) => Err(ReadFailed(Box::new(redb::Error::DatabaseClosed))),
        }
    }

    /// Tells what left; returns after it is gone for good. Until then a crash may bring it back.
    pub async fn left(&self, numbers: Vec<u64>) {
        self.tell(Vec::new(), numbers, Vec::new()).await;
    }

    /// The same of what the collector did not take: these spans will be found nowhere.
    pub async fn lost(&self, numbers: Vec<u64>, spans: Vec<[u8; 8]>) {
        self.tell(Vec::new(), numbers, spans).await;
    }

    /// Keeps what was made elsewhere, as by a replay; returns after it is durable.
    pub async fn put(&self, items: Vec<Outgoing>) {
        self.tell(items, Vec::new(), Vec::new()).await;
    }

    async fn tell(&self, put: Vec<Outgoing>, left: Vec<u64>, lost: Vec<[u8; 8]>) {
        let (done, durable) = oneshot::channel();
        if self.out.send(Message { put, left, lost, done }).is_ok() {
            // The owner ends without an answer only when nothing can be written any more.
            let _ = durable.await;
        }
    }

    /// How much waits, with a way to wait for changes.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }
}

fn read(
    db: &Mutex<Db>,
    signal: Signal,
    after: Option<u64>,
    most: usize,
    most_bytes: usize,
) -> Result<Oldest, redb::Error> {
    let mut found = Oldest::default();
    let mut bytes = 0;
    let mut from = after.map_or(0, |n| n.saturating_add(1));
    loop {
        // Commits wait only for this line.
        let tx = db.lock().unwrap_or_else(PoisonError::into_inner).begin_read()?;
        let table = match tx.open_table(SPOOL) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(found),
            table => table?,
        };
        let mut seen = 0;
        for row in table.range(from..)?.take(LOOK_THROUGH) {
            let (number, row) = row?;
            seen += 1;
            from = number.value() + 1;
            if signal_of(row.value()) != signal {
                continue;
            }
            let is_full = bytes + row.value().len() > most_bytes && !found.items.is_empty();
            if is_full || found.items.len() == most {
                found.more = true;
                return Ok(found);
            }
            bytes += row.value().len();
            let item = postcard::from_bytes(row.value()).ok();
            found.items.push(Waiting { number: number.value(), item });
        }
        if seen < LOOK_THROUGH {
            return Ok(found);
        }
    }
}
