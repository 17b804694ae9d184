//! A source whose peers tell the last moment they noticed: what moves a clock by hand waits for that, not for a while.

#![allow(missing_docs, clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use agent_session_exporter::event::{Name, Reducer, Timestamp};
use agent_session_exporter::sources::live::{
    Answer, Ask, AskError, LiveSource, NewPeer, Opening, Peer, Said,
};
use agent_session_exporter::sources::{DecodeError, Record};

use super::owner::LONG;

/// Patience with answers: servers that give none are tested, too.
const ANSWERS: Duration = Duration::from_millis(50);

/// What the peers of one run noticed, by server; only of those that are connected.
type Noticed = Arc<Mutex<HashMap<Name, Seen>>>;

#[derive(Clone, Copy)]
struct Seen {
    moment: Timestamp,
    /// Questions that are not answered.
    asked: usize,
    catching_up: bool,
}

/// Peers are made by a function without a memory of its own; runs are told apart by their reducer.
static RUNS: LazyLock<Mutex<HashMap<usize, (NewPeer, Noticed)>>> = LazyLock::new(Mutex::default);

/// One run's view.
pub struct Ticks {
    noticed: Noticed,
    /// Keeps its address from being another run's.
    _reducer: Arc<Reducer>,
}

struct Ticked {
    peer: Box<dyn Peer>,
    endpoint: Name,
    noticed: Noticed,
}

/// The same source, watched.
pub fn watched(source: &LiveSource, reducer: &Arc<Reducer>) -> (&'static LiveSource, Ticks) {
    let noticed = Noticed::default();
    let run = Arc::as_ptr(reducer) as usize;
    RUNS.lock().unwrap().insert(run, (source.new, noticed.clone()));
    let source = Box::leak(Box::new(LiveSource { new: ticked, ..*source }));
    (source, Ticks { noticed, _reducer: reducer.clone() })
}

fn ticked(opening: &Opening, saved: Option<&[u8]>) -> Box<dyn Peer> {
    let run = Arc::as_ptr(&opening.reducer) as usize;
    let (new, noticed) = RUNS.lock().unwrap()[&run].clone();
    Box::new(Ticked { peer: new(opening, saved), endpoint: opening.endpoint.clone(), noticed })
}

// === impl Ticks ===

impl Ticks {
    /// Waits until each connected peer noticed this moment and has the answers to what it asked then; `false` where
    /// none is connected.
    pub fn until(&self, moment: Timestamp) -> bool {
        let began = Instant::now();
        loop {
            let seen: Vec<Seen> = self.noticed.lock().unwrap().values().copied().collect();
            let patient = began.elapsed() < ANSWERS;
            if seen.iter().all(|seen| seen.moment >= moment && !(patient && seen.asked > 0)) {
                return !seen.is_empty();
            }
            assert!(began.elapsed() < LONG, "{moment} was never noticed");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Whether the server is followed, as of now: what the store shows of it is of a moment ago.
    pub fn follows(&self, endpoint: &str) -> bool {
        let noticed = self.noticed.lock().unwrap();
        noticed.iter().any(|(name, seen)| name.as_str() == endpoint && !seen.catching_up)
    }
}

// === impl Ticked ===

impl Ticked {
    /// Tells the peer something, and notes the questions that follow.
    fn tell<T>(&mut self, said: &mut Said, tell: impl FnOnce(&mut dyn Peer, &mut Said) -> T) -> T {
        let before = said.asks.len();
        let result = tell(&mut *self.peer, said);
        if let Some(seen) = self.noticed.lock().unwrap().get_mut(&self.endpoint) {
            seen.asked += said.asks.len() - before;
            seen.catching_up = self.peer.catching_up();
        }
        result
    }
}

impl Peer for Ticked {
    fn connected(&mut self, now: Timestamp, said: &mut Said) {
        self.noticed
            .lock()
            .unwrap()
            .insert(self.endpoint.clone(), Seen { moment: now, asked: 0, catching_up: true });
        self.tell(said, |peer, said| peer.connected(now, said));
    }

    fn lost(&mut self, now: Timestamp, said: &mut Said) {
        self.noticed.lock().unwrap().remove(&self.endpoint);
        self.peer.lost(now, said);
    }

    fn record(&mut self, record: &Record<'_>, said: &mut Said) -> Result<(), DecodeError> {
        self.tell(said, |peer, said| peer.record(record, said))
    }

    fn answered(
        &mut self,
        ask: &Ask,
        answer: &Result<Answer, AskError>,
        now: Timestamp,
        said: &mut Said,
    ) -> Result<(), DecodeError> {
        let result = self.tell(said, |peer, said| peer.answered(ask, answer, now, said));
        if let Some(seen) = self.noticed.lock().unwrap().get_mut(&self.endpoint) {
            seen.asked = seen.asked.saturating_sub(1);
        }
        result
    }

    fn tick(&mut self, now: Timestamp, said: &mut Said) {
        self.tell(said, |peer, said| peer.tick(now, said));
        if let Some(seen) = self.noticed.lock().unwrap().get_mut(&self.endpoint) {
            seen.moment = now;
        }
    }

    fn catching_up(&self) -> bool {
        self.peer.catching_up()
    }

    fn has_open(&self) -> bool {
        self.peer.has_open()
    }

    fn changed(&mut self) -> Option<Vec<u8>> {
        self.peer.changed()
    }
}

impl Drop for Ticked {
    fn drop(&mut self) {
        self.noticed.lock().unwrap().remove(&self.endpoint);
    }
}
