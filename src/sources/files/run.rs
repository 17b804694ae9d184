//! The loop of a file source, on a thread of its own: look around, read what is new (live before history), decode,
//! send; between that, ask about locks and say how the source is.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::feed::{Feed, MAX_INPUT};
use super::objects::complete;
use super::owners::Owners;
use super::saved::Saved;
use super::stream::{Shared, Stream};
use super::{FileSource, Live, Surroundings, agent_folders};
use crate::event::reduce::stable_hash;
use crate::event::{Fact, Name, Reducer, SessionId, SourceHealth, SourceId, Timestamp};
use crate::ingest::{Handle, Options, Outcome, Polled, RootState, Tail, Wake};
use crate::sources::{Context, Record};

/// Time between two questions about locks.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Sweeps after which a stream that an earlier run knew and no sweep saw counts as deleted.
const SWEEPS_TO_MISS: u32 = 2;

/// Time between two looks at what agents say of themselves, and the shortest one.
const LIVE_EVERY: Duration = Duration::from_secs(1);
const LIVE_AT_MOST_EVERY: Duration = Duration::from_millis(50);

/// An agent's folder.
struct Home {
    endpoint: Name,
    /// Tells that another exporter reads the same folder of the same machine.
    store: String,
    /// Its part of the roots.
    roots: Range<usize>,
    locks: Option<PathBuf>,
    live: Option<Box<dyn Live>>,
    /// Keyed hash of its path.
    key: u64,
    /// Something was there once: only then it can be lost.
    existed: bool,
    up: bool,
    since: Timestamp,
}

/// A running file source.
pub(super) struct Run {
    shared: Shared,
    surroundings: Surroundings,
    tail: Tail,
    feed: Feed,
    homes: Vec<Home>,
    root_keys: Vec<u64>,
    streams: HashMap<Handle, Stream>,
    /// Cursors of earlier runs that no followed file has claimed.
    saved: HashMap<u64, Saved>,
    sweeps: u32,
    scanned: bool,
    next_probe: Instant,
    next_live: Instant,
    last_live: Instant,
    watched: (usize, usize),
}

/// Where what an agent said of its sessions is kept.
fn live_key(reducer: &Reducer, home: u64) -> u64 {
    reducer.hash_all(&[&home.to_le_bytes(), b"live"])
}

/// Hash of machine and folder: not keyed by the state folder, because two exporters have two.
pub(in crate::sources) fn store_of(folder: &Path) -> String {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    format!("{:016x}", stable_hash((machine, folder.as_os_str().as_encoded_bytes())))
}

// === impl Run ===

impl Run {
    pub(super) fn new(
        def: FileSource,
        context: Context,
        surroundings: Surroundings,
        wake: Arc<Wake>,
    ) -> Self {
        let folders = agent_folders(&def, &context);
        let now = context.clock.now();
        let each = def.roots.len();
        let reducer = context.reducer.clone();
        let key_of = |folder: &Path| {
            reducer.hash_all(&[def.name.as_bytes(), b"home", folder.as_os_str().as_encoded_bytes()])
        };
        let source = SourceId::from(def.name);
        let begin_live = |folder: &Path| {
            let kept = context.cursors.get(&live_key(&reducer, key_of(folder)));
            let new = def.live?;
            Some(new(folder, source.clone(), reducer.clone(), kept.map(Vec::as_slice)))
        };
        let homes = folders.iter().enumerate().map(|(i, folder)| Home {
            live: begin_live(folder),
            key: key_of(folder),
            endpoint: if i == 0 { Name::from("default") } else { Name::from(format!("root{i}").as_str()) },
            store: store_of(folder),
            roots: i * each..(i + 1) * each,
            locks: def.lock_dir.map(|dir| folder.join(dir)),
            existed: false,
            up: true,
            since: now,
        });
        let mut homes: Vec<_> = homes.collect();
        let owners = homes
            .iter()
            .map(|home| Arc::new(Owners::restore(home.key, context.cursors.values().map(Vec::as_slice))));
        let owners = owners.collect();
        let roots: Vec<_> = folders.iter().flat_map(|f| def.roots.iter().map(|r| f.join(r))).collect();

        let path_key = |p: &PathBuf| reducer.hash(p.as_os_str().as_encoded_bytes());
        let root_keys: Vec<_> = roots.iter().map(path_key).collect();
        let saved: HashMap<_, _> = context
            .cursors
            .iter()
            .filter_map(|(key, value)| Some((*key, Saved::from_bytes(def.name, value)?)))
            .collect();
        for home in &mut homes {
            let keys = &root_keys[home.roots.clone()];
            home.existed = saved.values().any(|s| keys.contains(&s.root));
        }
        let hashing = reducer.clone();
        let options = Options {
            roots,
            accepts: def.accepts,
            stream: def.stream,
            max_age_ms: i64::try_from(context.max_age.as_millis()).unwrap_or(i64::MAX),
            hash: Arc::new(move |bytes| hashing.hash(bytes)),
            complete,
            poll_only: surroundings.poll_only,
            kernel: surroundings.kernel.clone(),
        };
        Self {
            shared: Shared {
                def,
                source,
                reducer: context.reducer,
                telemetry: context.telemetry,
                clock: context.clock,
                owners,
            },
            surroundings,
            tail: Tail::new(options, wake),
            feed: Feed::new(context.out),
            homes,
            root_keys,
            streams: HashMap::new(),
            saved,
            sweeps: 0,
            scanned: false,
            next_probe: Instant::now(),
            next_live: Instant::now(),
            last_live: Instant::now(),
            watched: (0, 0),
        }
    }

    /// Reads until it is told to end, or nobody listens.
    pub(super) fn until_stopped(mut self) {
        while !self.feed.is_closed() {
            let idle = self.next_probe.min(self.next_live).saturating_duration_since(Instant::now());
            let wait = if self.tail.has_work() { Duration::ZERO } else { idle };
            let look = self.tail.look(wait, self.shared.clock.now().as_millis());
            if look.stop {
                break;
            }
            self.shared.count_error("unreadable", look.unreadable);
            for handle in look.replaced {
                self.streams.remove(&handle);
            }
            for (handle, name) in look.renamed {
                self.streams.remove(&handle);
                self.feed.cursor(self.shared.key(&name), None);
            }
            for (handle, name) in look.deleted {
                self.deleted(handle, &name);
            }
            for (root, why) in look.polled {
                self.say_polled(root, why);
            }
            if look.swept {
                self.swept();
            }
            if look.news {
                self.next_live = self.next_live.min(self.last_live + LIVE_AT_MOST_EVERY);
            }
            if Instant::now() >= self.next_live {
                self.look_live();
            }
            if Instant::now() >= self.next_probe {
                self.probe_locks();
            }
            let mut live = false;
            match self.tail.next_file() {
                Some((handle, is_live)) => {
                    live = is_live;
                    self.step(handle);
                }
                None if !self.scanned && self.sweeps > 0 => self.first_scan_done(),
                None => {}
            }
            // What is live does not wait for history, history waits to fill a batch.
            if self.feed.is_full() || !self.tail.has_work() || (live && !self.tail.has_live()) {
                self.flush();
            }
        }
        self.flush();
        self.count_watched((0, 0));
    }

    /// Reads a part of a file.
    fn step(&mut self, handle: Handle) {
        if !self.streams.contains_key(&handle) {
            let Some(stream) = self.open(handle) else { return };
            self.streams.insert(handle, stream);
        }
        let Self { shared, tail, feed, streams, root_keys, .. } = self;
        let Some(stream) = streams.get_mut(&handle) else { return };
        if stream.decoder.is_none() {
            stream.decoder = shared.restore(stream.home, stream.name.as_deref(), &stream.saved.decoder);
            if stream.decoder.is_none() {
                tail.restart(handle);
                stream.begin(shared, tail, handle);
            }
        }
        if shared.def.peeks && stream.saved.lines == 0 {
            // When it was opened its head may not have been written yet.
            stream.begin(shared, tail, handle);
        }
        let observed = shared.clock.now();
        let mut records = 0;
        let mut at = tail.get(handle).map_or(0, |file| file.position.offset);
        let outcome = tail.read(handle, MAX_INPUT, &mut |line| {
            let record = Record { bytes: line.bytes, observed };
            records += stream.take(shared, &record, line.end, &mut feed.events);
            feed.read(line.end.saturating_sub(at));
            at = line.end;
            if feed.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        shared.count_records(records, observed);
        let Outcome::Slice(slice) = outcome else { return stream.begin(shared, tail, handle) };
        shared.count_error("too_long", slice.too_long);
        for kind in stream.decoder.as_mut().map(|d| d.unknown_kinds()).unwrap_or_default() {
            shared.telemetry.unknown_record(shared.source.as_str(), &kind);
        }
        if let Some(decoder) = &stream.decoder {
            stream.session = decoder.session().cloned().or(stream.session.take());
            stream.parent = decoder.parent().cloned();
            decoder.sessions(&mut stream.sessions);
        }
        if slice.moved {
            let value = stream.cursor(tail, handle, root_keys);
            feed.cursor(stream.key, Some(value));
        }
        if !slice.more && !tail.get(handle).is_some_and(|file| file.active) {
            stream.rest();
        }
        self.read_lost_anew(handle);
    }

    /// Begins anew with the streams of sessions that lost something to an older one. A stream that was not opened in
    /// this run yet follows when it is: `just_read` may be one.
    fn read_lost_anew(&mut self, just_read: Handle) {
        for home in 0..self.shared.owners.len() {
            let owners = self.shared.owners[home].clone();
            let lost = owners.more_lost();
            let of = |stream: &Stream, lost: &dyn Fn(&SessionId) -> bool| {
                stream.home == home && stream.sessions.iter().any(lost)
            };
            let again: Vec<Handle> = if lost.is_empty() {
                let read = self.streams.get(&just_read).filter(|s| of(s, &|session| owners.is_lost(session)));
                read.map(|_| just_read).into_iter().collect()
            } else {
                let all = self.streams.iter().filter(|(_, s)| of(s, &|session| lost.contains(session)));
                all.map(|(handle, _)| *handle).collect()
            };
            for handle in again {
                self.read_anew(handle, &owners);
            }
        }
    }

    /// Forgets what a stream told of its sessions, and reads it from its head.
    fn read_anew(&mut self, handle: Handle, owners: &Owners) {
        let Self { shared, tail, feed, root_keys, streams, .. } = self;
        let Some(stream) = streams.get_mut(&handle) else { return };
        tracing::debug!(source = shared.source.as_str(), "a session's history is another's: it is read anew");
        for session in &stream.sessions {
            owners.begin_anew(session);
            feed.events.push(shared.event(session, "reset", Fact::SessionReset));
        }
        if let Some(parent) = &stream.parent {
            // Part of what was known of a sub-agent stands in its parent's file.
            owners.lose(parent);
        }
        let offset = tail.get(handle).map_or(0, |file| file.position.offset);
        stream.begin_anew(shared, tail, handle, offset);
        tail.again(handle);
        let value = stream.cursor(tail, handle, root_keys);
        feed.cursor(stream.key, Some(value));
    }

    /// Sends what was gathered, with what is known by now of who owns what.
    fn flush(&mut self) {
        for (home, owners) in self.homes.iter().zip(&self.shared.owners) {
            for piece in owners.changed(home.key) {
                let key = self.shared.reducer.hash_all(&[&home.key.to_le_bytes(), piece.name.as_bytes()]);
                self.feed.cursor(key, piece.value);
            }
        }
        self.feed.flush();
    }

    /// Looks at what the agents say of their sessions.
    fn look_live(&mut self) {
        let Self { shared, feed, homes, .. } = self;
        let now = shared.clock.now();
        for home in homes {
            let Some(live) = &mut home.live else { continue };
            live.look(now, &mut feed.events);
            if let Some(value) = live.changed() {
                feed.cursor(live_key(&shared.reducer, home.key), Some(value));
            }
        }
        self.last_live = Instant::now();
        self.next_live = self.last_live + LIVE_EVERY;
    }

    /// Begins to follow a file, where an earlier run left it if it is still the same.
    fn open(&mut self, handle: Handle) -> Option<Stream> {
        let file = self.tail.get(handle)?;
        let name = file.name.to_owned();
        let key = self.shared.key(&name);
        let mut stream = Stream {
            key,
            decoder: None,
            saved: Saved::new(self.shared.def.name, self.root_keys[file.root], file.position),
            session: None,
            sessions: Vec::new(),
            parent: None,
            name: (self.shared.def.stream_id)(OsStr::new(&name)),
            warned: false,
            home: self.homes.iter().position(|home| home.roots.contains(&file.root)).unwrap_or(0),
        };
        if let Some(mut saved) = self.saved.remove(&key) {
            stream.saved.liveness = saved.liveness;
            // Whether or not it goes on where it was: what was counted of it was counted.
            (stream.saved.generation, stream.saved.counted_until) = (saved.generation, saved.counted_until);
            let restored = self.shared.restore(stream.home, stream.name.as_deref(), &saved.decoder);
            if let Some(decoder) = restored
                && self.tail.resume(handle, &saved.position)
            {
                stream.decoder = Some(decoder);
                saved.decoder = Vec::new();
                stream.saved = saved;
                return Some(stream);
            }
        }
        stream.begin(&self.shared, &self.tail, handle);
        Some(stream)
    }

    /// A stream went away while it was followed.
    fn deleted(&mut self, handle: Handle, name: &str) {
        let key = self.shared.key(name);
        let session = match self.streams.remove(&handle) {
            Some(stream) => stream.session,
            None => self.saved.remove(&key).and_then(|saved| self.session_of(&saved)),
        };
        self.say_deleted(key, session.as_ref());
    }

    fn say_deleted(&mut self, key: u64, session: Option<&SessionId>) {
        if let Some(session) = session {
            self.feed.events.push(self.shared.event(session, "deleted", Fact::SessionDeleted));
        }
        self.feed.cursor(key, None);
    }

    /// The session of a stream that nobody follows.
    fn session_of(&self, saved: &Saved) -> Option<SessionId> {
        let root = self.root_keys.iter().position(|key| *key == saved.root)?;
        let home = self.homes.iter().position(|home| home.roots.contains(&root))?;
        self.shared.restore(home, None, &saved.decoder)?.session().cloned()
    }

    /// After each look at everything.
    fn swept(&mut self) {
        self.sweeps = self.sweeps.saturating_add(1);
        self.shared.telemetry.last_scan.set(self.shared.clock.now().as_seconds());
        self.count_watched(self.tail.watched_roots());
        self.check_homes();
        if self.sweeps == SWEEPS_TO_MISS {
            self.find_deleted_meanwhile();
        }
        for (handle, stream) in &mut self.streams {
            if !self.tail.get(*handle).is_some_and(|file| file.active || file.waits) {
                stream.rest();
            }
        }
    }

    /// Streams that were deleted while nobody looked.
    fn find_deleted_meanwhile(&mut self) {
        let known: HashSet<u64> = self.tail.names().map(|name| self.shared.key(name)).collect();
        let listed = |root: &u64| {
            let at = self.root_keys.iter().position(|key| key == root);
            at.is_some_and(|i| self.tail.root_state(i) == RootState::Readable)
        };
        let gone: Vec<_> = self
            .saved
            .iter()
            .filter(|(key, s)| !known.contains(key) && listed(&s.root))
            .map(|(k, _)| *k)
            .collect();
        for key in gone {
            let session = self.saved.remove(&key).and_then(|saved| self.session_of(&saved));
            self.say_deleted(key, session.as_ref());
        }
    }

    fn check_homes(&mut self) {
        let now = self.shared.clock.now();
        let mut changed = Vec::new();
        for (i, home) in self.homes.iter_mut().enumerate() {
            let states = || home.roots.clone().map(|root| self.tail.root_state(root));
            home.existed |= states().any(|state| state != RootState::Missing);
            // Not installed is not down: nothing can be lost there.
            let up = !home.existed || states().any(|state| state == RootState::Readable);
            if up != home.up {
                (home.up, home.since) = (up, now);
                changed.push(i);
            }
            if home.existed {
                let labels = [self.shared.source.as_str(), home.endpoint.as_str()];
                self.shared.telemetry.source_up.with_label_values(&labels).set(i64::from(up));
                let [source, endpoint] = labels;
                let labels = [source, endpoint, home.store.as_str()];
                self.shared.telemetry.source_info.with_label_values(&labels).set(1);
            }
        }
        // The first word is about all of them, so that a source without sessions is known to be looked at.
        let first = self.sweeps == 1;
        for i in if first { (0..self.homes.len()).collect() } else { changed } {
            self.say_health(i);
        }
    }

    fn say_health(&mut self, home: usize) {
        self.flush();
        let home = &self.homes[home];
        self.feed.health(SourceHealth {
            source: self.shared.source.clone(),
            endpoint: home.endpoint.clone(),
            up: home.up,
            since: home.since,
            scanned: self.scanned,
        });
    }

    /// Everything the first sweep found has been read.
    fn first_scan_done(&mut self) {
        self.scanned = true;
        for home in 0..self.homes.len() {
            self.say_health(home);
        }
    }

    /// Asks who writes the sessions that are followed.
    fn probe_locks(&mut self) {
        self.next_probe = Instant::now() + PROBE_EVERY;
        let Self { shared, surroundings, tail, feed, homes, root_keys, streams, .. } = self;
        let sees_everything = surroundings.probe.sees_everything();
        for home in homes.iter() {
            let Some(folder) = &home.locks else { continue };
            let locks = surroundings.probe.look(folder);
            for (handle, stream) in streams.iter_mut() {
                let (Some(session), Some(name)) = (&stream.session, &stream.name) else { continue };
                if !tail.get(*handle).is_some_and(|file| home.roots.contains(&file.root)) {
                    continue;
                }
                let Some(writer) =
                    stream.saved.liveness.hear(locks.get(&format!("{name}.lock")), sees_everything)
                else {
                    continue;
                };
                let what = format!("writer:{}", writer.as_str());
                feed.events.push(shared.event(session, &what, Fact::Writer(writer)));
                let value = stream.cursor(tail, *handle, root_keys);
                feed.cursor(stream.key, Some(value));
            }
        }
    }

    /// Once for each root, and again when it had recovered.
    fn say_polled(&self, root: usize, why: Option<Polled>) {
        let source = self.shared.source.as_str();
        let home = self.homes.iter().find(|home| home.roots.contains(&root));
        let endpoint = home.map_or("", |home| home.endpoint.as_str());
        let folder = self.shared.def.roots[root % self.shared.def.roots.len()];
        match why.map(Polled::as_str) {
            Some(why) => tracing::warn!(source, endpoint, folder, why, "folder is polled instead of watched"),
            None => tracing::info!(source, endpoint, folder, "folder is watched again"),
        }
    }

    /// Other sources count their roots in the same gauge.
    fn count_watched(&mut self, now: (usize, usize)) {
        let before = std::mem::replace(&mut self.watched, now);
        for (mode, before, now) in [("inotify", before.0, now.0), ("polling", before.1, now.1)] {
            self.shared.telemetry.watched_roots.with_label_values(&[mode]).add(now as i64 - before as i64);
        }
    }
}
