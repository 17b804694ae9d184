//! Shapes of what an opencode server sends, as far as they are read. No meaning here.

use crate::event::Timestamp;
use crate::sources::shape::shapes;
pub(super) use crate::sources::shape::{
    Json, Raw, count, elements, from_line, list, millis, object, pairs, read, shape, text, word,
};

shapes! {
    /// A record of `/global/event`; the plain form of `/event` has the members of its payload.
    Frame { directory, payload: Payload }
    Payload { id, kind = "type", properties: Props, sync: Kept = "syncEvent" }
    /// The second form of an event that is kept by the server, and an element of `/sync/history`.
    Kept { id, kind = "type", seq, aggregate = "aggregateID", aggregate_id, data: Props }
    /// What belongs to an event, of both generations.
    Props {
        session = "sessionID", info: Info, part: Part, time, status: Status, error, id, permission, tool,
        request = "requestID", reply, todos, directory, timestamp, message = "messageID",
        assistant = "assistantMessageID", call = "callID", input, structured, finish, cost, tokens: Tokens,
        model: Model, agent, action, source, delivery, attempt,
    }
    /// A session or a message.
    Info {
        id, parent = "parentID", directory, role, agent, mode, model: Model, model_id = "modelID",
        provider_id = "providerID", version, time: Times, finish, error, cost, tokens: Tokens, summary,
    }
    Times { created, completed, start, end, updated }
    Model { id, model_id = "modelID", provider_id = "providerID" }
    Tokens { input, output, reasoning, cache: Cache }
    Cache { read, write }
    Failure { name, data: FailureData }
    FailureData { status_code = "statusCode", retryable = "isRetryable" }
    Status { kind = "type", attempt, next, action }
    /// Why an account is held back, as a word of the provider's.
    StatusAction { reason }
    Part {
        id, message = "messageID", session = "sessionID", kind = "type", tool, call = "callID",
        state: ToolState, files, auto, synthetic, metadata, time: Times,
    }
    ToolState { status, input, output, error, metadata, time: Times }
    /// What tools tell of what they did.
    Metadata {
        exit, diff, file_diff: FileDiff = "filediff", files, todos, interrupted, display: Display,
        compaction_continue,
    }
    FileDiff { file, additions, deletions, patch }
    Display { line_start = "lineStart", line_end = "lineEnd", total = "totalLines" }
    Input { file_path = "filePath", offset, limit, todos }
    Todo { status }
    /// The call a request is about.
    CallRef { message = "messageID", call = "callID" }
    /// A message with its parts, as it is asked for.
    Stored { info: Info, parts }
    /// A request of a permission or an answer that waits.
    Pending { id, session = "sessionID", permission, action, tool, source }
    /// The envelope of newer answers.
    Data { data }
}

/// Where in an id the time of its making stands: `evt_`, then twelve digits.
const STAMP: std::ops::Range<usize> = 4..16;
/// The time in an id counts modulo this many milliseconds, about 795 days.
const WRAP: i64 = 1 << 36;
/// Oldest event that is believed, and how far one may lie ahead: beyond that the number is no time.
const OLDEST: i64 = 366 * 24 * 3_600_000;
const AHEAD: i64 = 300_000;

/// When an event was made, from its id: the only time that says it for every kind. Arrival may lag by seconds.
pub(super) fn made(id: Raw<'_>, observed: Timestamp) -> Option<Timestamp> {
    let id = text(id)?;
    if !id.starts_with("evt_") {
        return None;
    }
    let stamp = i64::from_str_radix(id.get(STAMP)?, 16).ok()? >> 12;
    let behind = (observed.as_millis() - stamp).rem_euclid(WRAP);
    // Just ahead of our clock is nearly a whole round behind it.
    let behind = if WRAP - behind <= AHEAD { behind - WRAP } else { behind };
    (behind <= OLDEST).then(|| observed.plus(-behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(id: &str, observed: i64) -> Option<i64> {
        let spelled = format!("\"{id}\"");
        let raw = crate::sources::shape::json(&spelled);
        made(raw, Timestamp::from_millis(observed)).map(Timestamp::as_millis)
    }

    #[test]
    fn ids_tell_when_they_were_made() {
        let id = "evt_227e09c98001bD3h6lDxxB9Lyo";
        assert_eq!(of(id, 1_795_965_362_000), Some(1_795_965_361_304));
        // Our clock may be a little behind.
        assert_eq!(of(id, 1_795_965_361_000), Some(1_795_965_361_304));
        // Seen a month later, and in another round of the counter.
        assert_eq!(of(id, 1_795_965_361_304 + 30 * 86_400_000), Some(1_795_965_361_304));
        assert_eq!(of("evt_fffffffff001x", (26 << 36) + 5), Some((26 << 36) - 1));
    }

    #[test]
    fn what_is_no_such_id_has_no_time() {
        for id in ["evt_", "evt_227e09c9800", "msg_227e09c98001bD3h6lDxxB9Lyo", "evt_zzze09c98001bD3h6lDxxB"]
        {
            assert_eq!(of(id, 1_795_965_362_000), None, "{id}");
        }
        assert_eq!(of("evt_227e09c98001x", 1_795_965_361_304 + 400 * 86_400_000), None);
    }
}
