//! `notify`: takes Alertmanager's webhooks and raises desktop notifications. Alerts come in, notifications go out; nothing
//! is opened, run or answered, whatever an alert says. The exporter itself never starts this.
//!
//! One task owns what was told and the way to the desktop, so that notifications are raised one after the other and a
//! caller that hangs up halfway changes nothing.

mod desktop;
mod notice;
mod policy;
mod sample;
mod webhook;

use std::time::{Duration, Instant};

use axum::Router;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use self::desktop::Desktop;
use self::notice::Notice;
use self::policy::{Policy, Verdict};
use self::sample::samples;
use self::webhook::Webhook;

pub use self::desktop::Error;
pub use self::policy::Limits;

/// Webhooks that wait for their turn; more wait in their connections.
const WAITING: usize = 16;
/// How long a sum that could not be told waits for its next try.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// One webhook and who waits for what became of it.
struct Delivery {
    webhook: Webhook,
    answer: oneshot::Sender<Result<Done, Error>>,
}

/// What became of the alerts of a webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Done {
    /// Told at once.
    raised: usize,
    /// Over the limit, told with others as soon as it allows.
    held: usize,
    /// Over.
    ended: usize,
    /// Told before.
    known: usize,
}

/// The task that owns what was told.
pub struct Owner {
    inbox: mpsc::Receiver<Delivery>,
    policy: Policy,
    desktop: Desktop,
    /// Whether it was said that the desktop cannot be reached.
    warned: bool,
}

/// The receiver: what answers webhooks, and the task behind it, which ends when the router is gone.
pub fn receiver(limits: Limits) -> (Router, Owner) {
    let (outbox, inbox) = mpsc::channel(WAITING);
    let owner = Owner { inbox, policy: Policy::new(limits), desktop: Desktop::default(), warned: false };
    (webhook::router(outbox), owner)
}

/// Raises an example of each kind; gives a line of JSON for each that was sent.
///
/// # Errors
/// When the desktop cannot be reached.
pub async fn raise_samples() -> Result<String, Error> {
    let mut desktop = Desktop::default();
    let mut lines = String::new();
    for notice in samples() {
        let sent = desktop.raise(&notice).await?;
        // A struct of texts and numbers has no way to fail.
        lines.push_str(&serde_json::to_string(&sent).unwrap_or_default());
        lines.push('\n');
    }
    Ok(lines)
}

// === impl Owner ===

impl Owner {
    /// Runs until nobody can deliver any more. What is still held then is told, whatever the limit says: nobody else
    /// would.
    pub async fn run(mut self) {
        let mut not_before = Instant::now();
        loop {
            let due = self.policy.due(Instant::now()).map(|due| due.max(not_before));
            tokio::select! {
                delivery = self.inbox.recv() => match delivery {
                    Some(Delivery { webhook, answer }) => {
                        let done = self.take(webhook).await;
                        // Who hung up sends it again, and then it is known.
                        let _ = answer.send(done);
                    }
                    None => break,
                },
                () = sleep_until(due) => {
                    if self.tell_held().await.is_err() {
                        not_before = Instant::now() + AGAIN_AFTER;
                    }
                }
            }
        }
        let _ = self.tell_held().await;
    }

    /// Judges every alert and does what follows. Those before the first that could not be told are known when the
    /// webhook comes again.
    async fn take(&mut self, webhook: Webhook) -> Result<Done, Error> {
        let mut done = Done::default();
        for alert in &webhook.alerts {
            match self.policy.judge(alert, Instant::now()) {
                Verdict::Known => done.known += 1,
                Verdict::Over { close } => {
                    if let Some(shown) = close {
                        self.desktop.close(&shown).await;
                    }
                    self.policy.over(alert);
                    done.ended += 1;
                }
                Verdict::Hold => {
                    self.policy.hold(alert, Notice::of(alert));
                    done.held += 1;
                }
                Verdict::Raise { instead_of } => {
                    // Taken away and raised anew: most desktops change a notification in place without a sign, and this
                    // one is news.
                    if let Some(shown) = instead_of {
                        self.desktop.close(&shown).await;
                    }
                    let sent = self.raise(&Notice::of(alert)).await?;
                    self.policy.raised(alert, sent, Instant::now());
                    done.raised += 1;
                }
            }
        }
        self.policy.truncated(&webhook.group_key, webhook.truncated());
        Ok(done)
    }

    async fn tell_held(&mut self) -> Result<(), Error> {
        let Some(notice) = self.policy.sum() else { return Ok(()) };
        let shown = self.raise(&notice).await?;
        self.policy.told(shown, Instant::now());
        Ok(())
    }

    /// Raises it; that the desktop is gone or back is said once.
    async fn raise(&mut self, notice: &Notice) -> Result<policy::Shown, Error> {
        match self.desktop.raise(notice).await {
            Ok(sent) => {
                if std::mem::take(&mut self.warned) {
                    tracing::info!("the desktop can be reached again");
                }
                Ok(sent.shown)
            }
            Err(error) => {
                if std::mem::replace(&mut self.warned, true) {
                    tracing::debug!(%error, "the desktop still cannot be reached");
                } else {
                    tracing::warn!(%error, "the desktop cannot be reached; alerts are refused until it can");
                }
                Err(error)
            }
        }
    }
}

/// Waits until then, for ever where there is no then.
async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
