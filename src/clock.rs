//! The only reader of wall time. Everything else is handed a [`Timestamp`], so that a recording can be
//! replayed with its own clock and tests never sleep.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::event::Timestamp;

/// Where "now" comes from: the machine, or a recording that is replayed at a shifted time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Milliseconds added to the machine's time.
    shift_ms: i64,
    /// Epoch milliseconds that stand until somebody moves them.
    held: Option<&'static AtomicI64>,
}

impl Clock {
    /// The machine's own clock.
    pub const fn system() -> Self {
        Self { shift_ms: 0, held: None }
    }

    /// A clock that runs `shift_ms` ahead of (or, negative, behind) the machine's.
    pub const fn shifted(shift_ms: i64) -> Self {
        Self { shift_ms, held: None }
    }

    /// A clock that shows what `hand` says, so that a recording can be replayed step by step.
    pub const fn held(hand: &'static AtomicI64) -> Self {
        Self { shift_ms: 0, held: Some(hand) }
    }

    /// The current time.
    #[expect(clippy::disallowed_methods, reason = "the one place that may ask the machine")]
    pub fn now(self) -> Timestamp {
        if let Some(hand) = self.held {
            return Timestamp::from_millis(hand.load(Ordering::SeqCst));
        }
        let since_epoch = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX));
        Timestamp::from_millis(since_epoch.saturating_add(self.shift_ms))
    }
}
