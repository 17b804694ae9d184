//! Standard input: lines of the same schema, without HTTP. What is read waits for room and for the commit, so a
//! fast writer is slowed down and nothing is dropped.

use tokio::io::AsyncBufRead;
use tokio::io::AsyncBufReadExt as _;
use tokio::sync::oneshot;

use super::Decoder;
use super::Intake;
use super::Push;
use super::Reason;
use crate::event::Batch;

/// Reads lines until the input or the owner task ends. Whatever has arrived makes one batch; when this returns,
/// all of it is durable or was refused and counted.
pub async fn read_stdin(push: Push, mut reader: impl AsyncBufRead + Unpin) {
    let mut decoder = push.decoder();
    let mut lines = Lines { rest: Vec::new(), skipping: false, max: push.options.max_line };
    loop {
        let (intake, used) = match reader.fill_buf().await {
            Ok([]) => break,
            Ok(chunk) => (lines.feed(chunk, &mut decoder, &push), chunk.len()),
            Err(error) => {
                tracing::warn!(kind = ?error.kind(), "standard input cannot be read any more");
                break;
            }
        };
        reader.consume(used);
        if !hand_over(&push, intake).await {
            return;
        }
    }
    let last = lines.finish(&mut decoder, &push);
    hand_over(&push, last).await;
}

/// Sends a batch and waits for its commit; false where nobody takes batches any more.
async fn hand_over(push: &Push, intake: Intake) -> bool {
    push.count(&intake, push.clock.now());
    if intake.events.is_empty() {
        return true;
    }
    let (tell, told) = oneshot::channel();
    let batch = Batch {
        events: intake.events,
        // A receiver that is gone does not want to know.
        reply: Some(Box::new(move |answer| _ = tell.send(answer))),
        ..Batch::default()
    };
    if push.out.send(batch).await.is_err() {
        return false;
    }
    match told.await {
        Ok(Ok(_)) => true,
        Ok(Err(refused)) => {
            // The owner keeps what it was given and commits it when it can; sending it again would not help.
            push.refused(Reason::Unavailable);
            tracing::warn!(%refused, "lines of standard input are not durable yet");
            true
        }
        Err(_) => false,
    }
}

/// Cuts chunks into lines; the beginning of an unfinished one is kept, up to the longest line.
struct Lines {
    rest: Vec<u8>,
    /// Inside a line that is too long, whose end has not come yet.
    skipping: bool,
    max: usize,
}

// === impl Lines ===

impl Lines {
    fn feed(&mut self, chunk: &[u8], decoder: &mut Decoder, push: &Push) -> Intake {
        let mut intake = Intake::default();
        let now = push.clock.now();
        let mut from = 0;
        for end in memchr::memchr_iter(b'\n', chunk) {
            let line = &chunk[from..end];
            from = end + 1;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if self.rest.is_empty() {
                take(&mut intake, line, decoder, now);
            } else {
                self.rest.extend_from_slice(line);
                take(&mut intake, &self.rest, decoder, now);
                self.rest.clear();
            }
        }
        let open = &chunk[from..];
        if self.skipping {
            return intake;
        }
        if self.rest.len() + open.len() > self.max {
            self.rest = Vec::new();
            self.skipping = true;
            intake.refused.push((0, Reason::LineTooLong));
        } else {
            self.rest.extend_from_slice(open);
        }
        intake
    }

    /// The last line may lack its end.
    fn finish(&mut self, decoder: &mut Decoder, push: &Push) -> Intake {
        let mut intake = Intake::default();
        take(&mut intake, &self.rest, decoder, push.clock.now());
        intake
    }
}

fn take(intake: &mut Intake, line: &[u8], decoder: &mut Decoder, now: crate::event::Timestamp) {
    if !line.trim_ascii().is_empty() {
        intake.take(0, decoder.item(line, now));
    }
}
