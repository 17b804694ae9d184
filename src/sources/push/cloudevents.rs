//! CloudEvents 1.0: the same facts in the envelope of <https://github.com/cloudevents/spec>. `type`, `id` and
//! `time` are ours, the last segment of `source` names the source, `subject` is the session; `projectid`,
//! `parentsessionid` and `requestid` are extension attributes, and so is `traceparent`, of the extension for distributed
//! tracing.

use std::borrow::Cow;

use axum::http::HeaderMap;
use serde::Deserialize;

use super::refuse::Reason;
use super::wire::Data;
use super::wire::Envelope;
use super::wire::Scalar;

/// The version of CloudEvents that is read.
const SPEC_VERSION: &str = "1.0";

/// The attributes of a CloudEvent.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct CloudEnvelope<'a> {
    #[serde(borrow)]
    specversion: Scalar<'a>,
    #[serde(borrow)]
    id: Scalar<'a>,
    #[serde(borrow)]
    time: Scalar<'a>,
    #[serde(borrow)]
    source: Scalar<'a>,
    #[serde(borrow)]
    subject: Scalar<'a>,
    #[serde(borrow, rename = "type")]
    kind: Scalar<'a>,
    #[serde(borrow)]
    projectid: Scalar<'a>,
    #[serde(borrow)]
    parentsessionid: Scalar<'a>,
    #[serde(borrow)]
    requestid: Scalar<'a>,
    #[serde(borrow)]
    traceparent: Scalar<'a>,
    #[serde(borrow)]
    data: Option<Data<'a>>,
    /// Binary data: none of our types has any.
    #[serde(borrow)]
    data_base64: Scalar<'a>,
}

// === impl CloudEnvelope ===

impl<'a> CloudEnvelope<'a> {
    /// The attributes of binary mode, from the `ce-` headers.
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<CloudEnvelope<'static>, Reason> {
        let get = |name: &str| -> Result<Scalar<'static>, Reason> {
            let Some(value) = headers.get(name) else { return Ok(Scalar::Absent) };
            let text = percent_decoded(value.as_bytes()).ok_or(Reason::BadValue)?;
            Ok(Scalar::Text(Cow::Owned(text)))
        };
        Ok(CloudEnvelope {
            specversion: get("ce-specversion")?,
            id: get("ce-id")?,
            time: get("ce-time")?,
            source: get("ce-source")?,
            subject: get("ce-subject")?,
            kind: get("ce-type")?,
            projectid: get("ce-projectid")?,
            parentsessionid: get("ce-parentsessionid")?,
            requestid: get("ce-requestid")?,
            traceparent: get("ce-traceparent")?,
            data: None,
            data_base64: Scalar::Absent,
        })
    }

    /// The same in our own envelope.
    pub(super) fn into_envelope(self) -> Result<Envelope<'a>, Reason> {
        if self.specversion.text()? != Some(SPEC_VERSION) {
            return Err(Reason::BadSchemaVersion);
        }
        if self.data_base64 != Scalar::Absent {
            return Err(Reason::BadShape);
        }
        let source = match self.source {
            Scalar::Text(text) => {
                let last = text.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
                Scalar::Text(Cow::Owned(last.to_owned()))
            }
            other => other,
        };
        Ok(Envelope {
            schema_version: Scalar::Absent,
            id: self.id,
            time: self.time,
            source,
            session_id: self.subject,
            parent_session_id: self.parentsessionid,
            project_id: self.projectid,
            request_id: self.requestid,
            trace_parent: self.traceparent,
            kind: self.kind,
            data: self.data,
        })
    }
}

/// Header values carry everything beyond printable ASCII percent-encoded (HTTP binding, 3.1.3.2).
fn percent_decoded(value: &[u8]) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.iter().copied();
    while let Some(byte) = rest.next() {
        let byte = if byte == b'%' {
            let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
            let (high, low) = (digit()?, digit()?);
            (high * 16 + low) as u8
        } else {
            byte
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_are_decoded() {
        assert_eq!(percent_decoded(b"Euro%20%E2%82%AC").as_deref(), Some("Euro \u{20ac}"));
        for bad in [&b"%"[..], b"%2", b"%zz", b"%ff"] {
            assert_eq!(percent_decoded(bad), None);
        }
    }
}
