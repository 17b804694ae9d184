//! What survives a restart: sessions at work, and how far the others were heard.

use serde::{Deserialize, Serialize};

use super::state::{Doubt, Session, Sessions};
use crate::event::Timestamp;

/// Version of the layout.
const LAYOUT: u8 = 2;
/// Most bytes; the store takes 64 KiB.
const MAX_BYTES: usize = 60 << 10;
/// Sessions that are kept.
const MAX_KEPT: usize = 128;
/// What is kept of the lists of a session that is idle.
const FEW: usize = 4;

#[derive(Serialize, Deserialize)]
struct Saved {
    layout: u8,
    heard: Option<Timestamp>,
    sessions: Vec<Session>,
}

/// The sessions that matter most, as far as they fit: those at work, then those heard of last.
pub(super) fn save(sessions: &Sessions, heard: Option<Timestamp>) -> Vec<u8> {
    let mut all: Vec<&Session> = sessions.all.values().collect();
    all.sort_by_key(|s| (!s.is_open(), std::cmp::Reverse(s.touched)));
    let mut saved = Saved { layout: LAYOUT, heard, sessions: Vec::new() };
    let mut size = 0;
    for session in all.into_iter().take(MAX_KEPT) {
        let mut session = session.clone();
        let few = if session.is_open() { 8 * FEW } else { FEW };
        session.done.drain(..session.done.len().saturating_sub(few));
        session.messages.drain(..session.messages.len().saturating_sub(few));
        let own = postcard::to_stdvec(&session).map_or(0, |bytes| bytes.len());
        if size + own > MAX_BYTES {
            continue;
        }
        size += own;
        saved.sessions.push(session);
    }
    postcard::to_stdvec(&saved).unwrap_or_default()
}

/// Takes in what an earlier run saved. Nothing is sure any more of what worked then.
/// When the stream was heard last.
pub(super) fn restore(saved: Option<&[u8]>, sessions: &mut Sessions) -> Option<Timestamp> {
    let saved = saved.and_then(|bytes| postcard::from_bytes::<Saved>(bytes).ok());
    let saved = saved.filter(|saved| saved.layout == LAYOUT)?;
    for mut session in saved.sessions.into_iter().rev() {
        if session.is_open() {
            session.doubt = Doubt::Open;
        }
        let touched = sessions.of(&session.id).touched;
        session.touched = touched;
        sessions.all.insert(session.id.clone(), session);
    }
    saved.heard
}
