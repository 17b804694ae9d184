//! What a collector answered, in the terms of whoever has to decide what becomes of the items: arrived, later, never.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;

use crate::event::Timestamp;
use crate::spans::Signal;

/// Longest answer that is read.
pub const MAX_ANSWER: usize = 1 << 20;
/// Longest time that a server may ask to be left alone.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The collector has it, but for so many items that it will never take.
    Taken {
        /// Items it will not take.
        rejected: u64,
        /// What it says of that; may be shown to nobody but who looks for it.
        message: String,
    },
    /// Not now.
    Later {
        /// Why not.
        why: Why,
        /// When it wants to be asked again.
        after: Option<Duration>,
    },
    /// Not as long as settings stay as they are, here or there: nothing is wrong with the items.
    Misled(Why),
    /// The server failed over these items, or over itself; that may pass.
    Failed(Why),
    /// Too much at once.
    TooLarge(Why),
    /// Never.
    Refused(Why),
}

/// Why something did not arrive. Closed; never holds what a server wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// Nobody listens, the name is unknown, or the connection broke.
    #[error("no connection")]
    Connection,
    /// It took too long.
    #[error("no answer in time")]
    Timeout,
    /// The certificate of one side.
    #[error("the certificate is not valid")]
    Certificate,
    /// What answers is no collector.
    #[error("the answer is not one of OTLP")]
    NotOtlp,
    /// A status of HTTP.
    #[error("status {0}")]
    Status(u16),
    /// A code of gRPC.
    #[error("code {0} of gRPC")]
    Code(i32),
}

// === impl Answer ===

impl Answer {
    /// Nothing was wrong.
    pub const TAKEN: Self = Self::Taken { rejected: 0, message: String::new() };

    /// What the body of a success says.
    pub(super) fn of_body(signal: Signal, body: &[u8]) -> Self {
        let partial = match signal {
            Signal::Traces => ExportTraceServiceResponse::decode(body)
                .map(|r| r.partial_success.map(|p| (p.rejected_spans, p.error_message))),
            Signal::Logs => ExportLogsServiceResponse::decode(body)
                .map(|r| r.partial_success.map(|p| (p.rejected_log_records, p.error_message))),
            Signal::Metrics => ExportMetricsServiceResponse::decode(body)
                .map(|r| r.partial_success.map(|p| (p.rejected_data_points, p.error_message))),
        };
        match partial {
            Ok(partial) => {
                let (rejected, message) = partial.unwrap_or_default();
                Self::Taken { rejected: u64::try_from(rejected).unwrap_or(0), message }
            }
            Err(_) => Self::Misled(Why::NotOtlp),
        }
    }

    /// The same of a body in JSON, in which some collectors answer whatever they were asked in.
    pub(super) fn of_json(signal: Signal, body: &[u8]) -> Self {
        let Ok(serde_json::Value::Object(answer)) = serde_json::from_slice(body) else {
            return Self::Misled(Why::NotOtlp);
        };
        let field = match signal {
            Signal::Traces => "rejectedSpans",
            Signal::Logs => "rejectedLogRecords",
            Signal::Metrics => "rejectedDataPoints",
        };
        let partial = answer.get("partialSuccess");
        // 64-bit numbers are texts in the JSON of protobuf.
        let number = |v: &serde_json::Value| v.as_u64().or_else(|| v.as_str().and_then(|t| t.parse().ok()));
        let rejected = partial.and_then(|p| p.get(field)).and_then(number).unwrap_or(0);
        let message = partial.and_then(|p| p.get("errorMessage")).and_then(|m| m.as_str());
        Self::Taken { rejected, message: message.unwrap_or_default().to_owned() }
    }

    /// What a status of HTTP means, where it is no success. Pages are shown by what stands in between: a proxy that misses
    /// a certificate or has no way to the collector says nothing about the items.
    pub(super) fn of_status(status: u16, kind: &str, after: Option<Duration>) -> Self {
        let why = Why::Status(status);
        let is_page = kind.trim_start().to_ascii_lowercase().starts_with("text/html");
        match status {
            429 | 502 | 503 | 504 | 408 => Self::Later { why, after },
            413 => Self::TooLarge(why),
            // Another address, another login or another protocol is needed: somebody has to change a setting.
            300..=399 | 401 | 403 | 404 | 405 | 407 | 415 | 421 | 426 => Self::Misled(why),
            500..=599 if is_page => Self::Later { why, after },
            500..=599 => Self::Failed(why),
            _ if is_page => Self::Misled(why),
            _ => Self::Refused(why),
        }
    }

    /// What a code of gRPC means, where it is no success.
    pub(super) fn of_code(code: tonic::Code, after: Option<Duration>) -> Self {
        use tonic::Code;
        let why = Why::Code(code as i32);
        match code {
            Code::Ok => Self::TAKEN,
            Code::Unavailable
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::DataLoss => Self::Later { why, after },
            Code::ResourceExhausted if after.is_some() => Self::Later { why, after },
            // Without a word of when to come again it is mostly the size of the message that exhausts.
            Code::ResourceExhausted => Self::TooLarge(why),
            Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented | Code::NotFound => {
                Self::Misled(why)
            }
            Code::Internal | Code::Unknown => Self::Failed(why),
            Code::InvalidArgument | Code::AlreadyExists | Code::FailedPrecondition => Self::Refused(why),
        }
    }
}

/// A time that a server asks for, within reason.
pub(super) fn bounded(after: Duration) -> Duration {
    after.min(MAX_RETRY_AFTER)
}

/// What the header Retry-After says: seconds or a date of HTTP.
pub(super) fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(bounded(Duration::from_secs(seconds)));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    let ahead = u64::try_from(date.as_millisecond().saturating_sub(now.as_millis())).unwrap_or(0);
    Some(bounded(Duration::from_millis(ahead)))
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;

    #[test]
    fn a_body_says_what_was_rejected() {
        let message = "three were too old".to_owned();
        let partial = ExportTracePartialSuccess { rejected_spans: 3, error_message: message.clone() };
        let body = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        let partly = Answer::Taken { rejected: 3, message };
        assert_eq!(Answer::of_body(Signal::Traces, &body), partly);
        assert_eq!(Answer::of_body(Signal::Traces, b""), Answer::TAKEN);
        assert_eq!(Answer::of_body(Signal::Traces, b"<html>"), Answer::Misled(Why::NotOtlp));
        let json = br#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"three were too old"}}"#;
        assert_eq!(Answer::of_json(Signal::Traces, json), partly);
        assert_eq!(Answer::of_json(Signal::Logs, b"{}"), Answer::TAKEN);
        assert_eq!(Answer::of_json(Signal::Logs, b"[]"), Answer::Misled(Why::NotOtlp));
    }

    #[test]
    fn only_what_is_wrong_with_items_loses_them() {
        let of = |status, kind| Answer::of_status(status, kind, None);
        for status in [400, 409, 422] {
            assert_eq!(of(status, "application/x-protobuf"), Answer::Refused(Why::Status(status)));
            assert_eq!(of(status, "text/html; charset=x"), Answer::Misled(Why::Status(status)), "a proxy");
        }
        for status in [301, 401, 403, 404, 405] {
            assert_eq!(of(status, ""), Answer::Misled(Why::Status(status)));
        }
        assert_eq!(of(500, ""), Answer::Failed(Why::Status(500)));
        assert_eq!(of(500, "text/html"), Answer::Later { why: Why::Status(500), after: None });
        let after = Some(Duration::from_secs(3));
        for status in [429, 502, 503, 504] {
            let later = Answer::Later { why: Why::Status(status), after };
            assert_eq!(Answer::of_status(status, "", after), later);
        }
        use tonic::Code;
        let full = Answer::of_code(Code::ResourceExhausted, after);
        assert_eq!(full, Answer::Later { why: Why::Code(8), after });
        assert_eq!(Answer::of_code(Code::ResourceExhausted, None), Answer::TooLarge(Why::Code(8)));
        assert_eq!(Answer::of_code(Code::Unauthenticated, None), Answer::Misled(Why::Code(16)));
        assert_eq!(Answer::of_code(Code::InvalidArgument, None), Answer::Refused(Why::Code(3)));
    }

    #[test]
    fn servers_say_when_in_seconds_or_as_a_date() {
        let now = Timestamp::parse("2026-11-30T03:00:00Z").unwrap();
        let of = |text| retry_after(text, now);
        assert_eq!(of("7"), Some(Duration::from_secs(7)));
        assert_eq!(of(" 0 "), Some(Duration::ZERO));
        assert_eq!(of("Mon, 30 Nov 2026 03:00:05 GMT"), Some(Duration::from_secs(5)));
        assert_eq!(of("Mon, 30 Nov 2026 02:00:00 GMT"), Some(Duration::ZERO), "past");
        assert_eq!(of("99999999999"), Some(MAX_RETRY_AFTER));
        assert_eq!(of("Tue, 30 Nov 2027 03:00:05 GMT"), Some(MAX_RETRY_AFTER));
        for nonsense in ["", "soon", "-5", "1.5"] {
            assert_eq!(of(nonsense), None, "{nonsense}");
        }
    }
}
