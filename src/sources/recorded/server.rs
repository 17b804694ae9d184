//! What a server said on its stream and answered to questions, one line each with its time:
//!
//! ```json
//! {"t": 1764500000000, "connected": true}
//! {"t": 1764500000000, "answer": {"path": "/session/status", "status": 200, "body": {}}}
//! {"t": 1764500001234, "record": {"payload": {"type": "session.idle"}}}
//! {"t": 1764500009876, "connected": false}
//! ```
//!
//! `t` is a time in RFC 3339 or in epoch milliseconds, `record` the data of one server-sent event or one message of a
//! WebSocket. A connection before the first record goes without saying. A question gets the answer that was recorded to
//! it: the next one within a minute, else the last one; without any, none, as from a server that does not answer.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::live::{Answer, Ask, AskError, LiveSource, Opening, Peer, Said};
use super::lines::{SILENCE_MS, each_second};
use super::{Played, Take, bytes_of, each_stamped};
use crate::event::{Name, Timestamp};
use crate::sources::Record;

/// A question is answered within this time.
const ANSWERED_WITHIN_MS: i64 = 60_000;
/// Rounds of questions that one moment may raise; a peer that asks more goes in circles.
const MAX_ROUNDS: usize = 1_000;

#[derive(Deserialize)]
struct Answered<'a> {
    path: String,
    #[serde(default = "ok")]
    status: u16,
    #[serde(borrow, default)]
    body: Option<&'a RawValue>,
}

const fn ok() -> u16 {
    200
}

enum What {
    Connected,
    Lost,
    Record(Vec<u8>),
}

/// A server as its recording tells it.
struct Server<'a> {
    peer: Box<dyn Peer>,
    answers: HashMap<String, Vec<(Timestamp, u16, Vec<u8>)>>,
    played: &'a mut Played,
}

pub(super) fn play(source: &LiveSource, take: &Take<'_>, path: &Path, played: &mut Played) -> io::Result<()> {
    let mut answers: HashMap<String, Vec<(Timestamp, u16, Vec<u8>)>> = HashMap::new();
    let mut said = Vec::new();
    each_stamped(path, played, |at, stamp, played| {
        if let Some(record) = stamp.record {
            said.push((at, What::Record(bytes_of(record))));
        } else if let Some(connected) = stamp.connected {
            said.push((at, if connected { What::Connected } else { What::Lost }));
        } else if let Some(answer) =
            stamp.answer.and_then(|raw| serde_json::from_str::<Answered<'_>>(raw.get()).ok())
        {
            let body = answer.body.map(bytes_of).unwrap_or_default();
            answers.entry(answer.path).or_default().push((at, answer.status, body));
        } else {
            played.refuse("no_record");
        }
    })?;
    for list in answers.values_mut() {
        list.sort_by_key(|(at, ..)| *at);
    }
    let answered = answers.values().filter_map(|list| list.last()).map(|(at, ..)| *at);
    let end = answered.chain(said.last().map(|(at, _)| *at)).max();
    // The server's address is not recorded: links to its pages cannot be made.
    let opening = Opening {
        source: take.source.clone(),
        endpoint: Name::from(take.name),
        base: String::new(),
        reducer: take.setting.reducer.clone(),
    };
    Server { peer: (source.new)(&opening, None), answers, played }.play(said, end);
    Ok(())
}

// === impl Server ===

impl Server<'_> {
    fn play(mut self, lines: Vec<(Timestamp, What)>, end: Option<Timestamp>) {
        let mut connected = false;
        let mut now: Option<Timestamp> = None;
        for (at, what) in lines {
            let at = now.map_or(at, |now| now.max(at));
            if connected {
                each_second(now, at, |second| self.tell(second, |peer, said| peer.tick(second, said)));
            }
            now = Some(at);
            if !connected && !matches!(what, What::Lost) {
                connected = true;
                self.tell(at, |peer, said| peer.connected(at, said));
            }
            match what {
                What::Connected => {}
                What::Lost => {
                    connected = false;
                    self.tell(at, |peer, said| peer.lost(at, said));
                }
                What::Record(bytes) => {
                    let mut refused = None;
                    self.tell(at, |peer, said| {
                        refused = peer.record(&Record { bytes: &bytes, observed: at }, said).err();
                    });
                    if let Some(error) = refused {
                        self.played.refuse(error.as_str());
                    }
                }
            }
        }
        if let Some(end) = end.filter(|_| connected) {
            each_second(now, end.plus(SILENCE_MS), |second| {
                self.tell(second, |peer, said| peer.tick(second, said));
            });
        }
    }

    /// Tells the peer something, and answers what it asks.
    fn tell(&mut self, now: Timestamp, what: impl FnOnce(&mut dyn Peer, &mut Said)) {
        let mut said = Said::default();
        what(self.peer.as_mut(), &mut said);
        for _ in 0..MAX_ROUNDS {
            for kind in said.unknown.drain(..) {
                self.played.unknown(kind);
            }
            self.played.take(now, said.events.drain(..));
            // A position is the runner's business, but asking for it moves the peer on.
            let _ = self.peer.changed();
            let asks = std::mem::take(&mut said.asks);
            if asks.is_empty() {
                break;
            }
            for ask in asks {
                let answer = self.answer(&ask, now);
                if let Err(error) = self.peer.answered(&ask, &answer, now, &mut said) {
                    self.played.refuse(error.as_str());
                }
            }
        }
    }

    fn answer(&self, ask: &Ask, now: Timestamp) -> Result<Answer, AskError> {
        let all = self.answers.get(&ask.path).ok_or(AskError::Connection)?;
        let next = all.partition_point(|(at, ..)| *at < now);
        let soon = all.get(next).filter(|(at, ..)| at.since(now) <= ANSWERED_WITHIN_MS);
        let (_, status, body) = soon.or_else(|| all.get(next.checked_sub(1)?)).ok_or(AskError::Connection)?;
        Ok(Answer { status: *status, body: body.clone(), next: None })
    }
}
