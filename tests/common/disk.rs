//! A disk in memory that can lose power, be full, or hang. It outlives the process that uses it: each handle belongs
//! to one life, and after [`Disk::crash`] the handles of the life before reach nothing any more.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use agent_session_exporter::store::Backend;
use redb::StorageBackend;

/// Smallest piece a disk writes as a whole.
const SECTOR: usize = 512;

#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes as of the last sync.
    synced: Vec<u8>,
    /// Bytes as the living process sees them.
    seen: Vec<u8>,
    /// What happened since the last sync.
    unsynced: Vec<Change>,
    life: u64,
    operations: u64,
    dies_at: Option<u64>,
    full: bool,
    syncs_held: bool,
    syncs: u64,
    sync_takes: Duration,
}

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Len(u64),
}

/// What a crash leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Nothing.
    DropsAll,
    /// All of it: the process died, the machine did not.
    KeepsAll,
    /// Any of the writes.
    KeepsSome,
    /// Any sectors of any of the writes.
    Tears,
}

/// A small generator, so that a failure can be repeated from its seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    pub fn half(&mut self) -> bool {
        self.below(2) == 0
    }
}

#[derive(Debug)]
struct Handle {
    disk: Disk,
    life: u64,
}

impl Disk {
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let result = f(&mut self.0.state.lock().unwrap());
        self.0.changed.notify_all();
        result
    }

    /// The backend for one life.
    pub fn backend(&self) -> Backend {
        let disk = self.clone();
        let life = self.with(|s| s.life);
        Arc::new(move || Ok(Box::new(Handle { disk: disk.clone(), life }) as Box<dyn StorageBackend>))
    }

    /// From the `n`th operation on nothing reaches the disk, until it crashes.
    pub fn die_after(&self, n: u64) {
        self.with(|s| s.dies_at = Some(s.operations + n));
    }

    pub fn is_dead(&self) -> bool {
        self.with(|s| s.dies_at.is_some_and(|at| s.operations >= at))
    }

    /// No room, or room again.
    pub fn set_full(&self, full: bool) {
        self.with(|s| s.full = full);
    }

    /// Syncs hang until they are let go.
    pub fn hold_syncs(&self, held: bool) {
        self.with(|s| s.syncs_held = held);
    }

    /// How long a sync takes.
    pub fn slow_syncs(&self, takes: Duration) {
        self.with(|s| s.sync_takes = takes);
    }

    pub fn syncs(&self) -> u64 {
        self.with(|s| s.syncs)
    }

    /// What would be left if the power went off now.
    pub fn synced(&self) -> Self {
        Self::of(self.with(|s| s.synced.clone()))
    }

    /// Ends the life of all handles and leaves what a real disk might hold.
    pub fn crash(&self, kind: Crash, rng: &mut Rng) {
        self.with(|s| {
            let mut image = std::mem::take(&mut s.synced);
            for change in std::mem::take(&mut s.unsynced) {
                match change {
                    _ if kind == Crash::DropsAll => {}
                    Change::Len(len) if kind == Crash::KeepsAll => image.resize(len as usize, 0),
                    Change::Write(at, data) if kind == Crash::KeepsAll => put(&mut image, at as usize, &data),
                    Change::Len(len) if rng.half() => image.resize(len as usize, 0),
                    Change::Write(at, data) if kind == Crash::KeepsSome && rng.half() => {
                        put(&mut image, at as usize, &data);
                    }
                    Change::Write(at, data) if kind == Crash::Tears => {
                        let mut done = 0;
                        while done < data.len() {
                            let from = at as usize + done;
                            let n = (SECTOR - from % SECTOR).min(data.len() - done);
                            if rng.half() {
                                put(&mut image, from, &data[done..done + n]);
                            }
                            done += n;
                        }
                    }
                    _ => {}
                }
            }
            s.seen.clone_from(&image);
            s.synced = image;
            s.life += 1;
            s.dies_at = None;
            s.full = false;
            s.syncs_held = false;
        });
    }

    /// The bytes, for tampering with them.
    pub fn bytes(&self) -> Vec<u8> {
        self.with(|s| s.seen.clone())
    }

    /// A disk that holds these bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        let disk = Self::default();
        disk.with(|s| {
            s.synced.clone_from(&bytes);
            s.seen = bytes;
        });
        disk
    }
}

fn put(image: &mut Vec<u8>, at: usize, data: &[u8]) {
    if image.len() < at + data.len() {
        image.resize(at + data.len(), 0);
    }
    image[at..at + data.len()].copy_from_slice(data);
}

impl Handle {
    /// One operation of this life; the one that dies may have done half of its work.
    fn change(&self, change: Change) -> io::Result<()> {
        self.disk.with(|s| {
            if s.life != self.life {
                return Err(io::Error::other("a process that is no more"));
            }
            if s.full {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            s.operations += 1;
            let dead = s.dies_at.is_some_and(|at| s.operations >= at);
            if !dead || s.dies_at == Some(s.operations) {
                match &change {
                    Change::Write(at, data) => put(&mut s.seen, *at as usize, data),
                    Change::Len(len) => s.seen.resize(*len as usize, 0),
                }
                s.unsynced.push(change);
            }
            if dead { Err(io::Error::other("no power")) } else { Ok(()) }
        })
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.with(|s| s.seen.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.with(|s| {
            let from = s.seen.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
            out.copy_from_slice(from.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::Len(len))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Write(offset, data.to_vec()))
    }

    fn sync_data(&self) -> io::Result<()> {
        let state = self.disk.0.state.lock().unwrap();
        let mut s = self.disk.0.changed.wait_while(state, |s| s.syncs_held && s.life == self.life).unwrap();
        if s.life != self.life {
            return Err(io::Error::other("a process that is no more"));
        }
        if s.full {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        s.operations += 1;
        if s.dies_at.is_some_and(|at| s.operations >= at) {
            return Err(io::Error::other("no power"));
        }
        for change in std::mem::take(&mut s.unsynced) {
            match change {
                Change::Write(at, data) => put(&mut s.synced, at as usize, &data),
                Change::Len(len) => s.synced.resize(len as usize, 0),
            }
        }
        s.syncs += 1;
        let takes = s.sync_takes;
        drop(s);
        std::thread::sleep(takes);
        Ok(())
    }
}
