//! Spans and log records in the form of OTLP. Ids and times are sent as they are; nothing is sampled, renamed or added but
//! who sends it.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{Event, Link, SpanContext, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1 as proto;
use opentelemetry_proto::tonic::logs::v1::{self as logs, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::{Attributes, ResourceAttributesWithSchema};
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use prost::Message as _;

use crate::event::Timestamp;
use crate::spans::{
    Context, Key, LogRecord, Outgoing, SCHEMA_URL, Signal, Span, SpanEvent, SpanId, Text, TraceId, Value,
};

/// Name of the instrumentation scope of everything about agents.
pub const SCOPE: &str = "agent_session_exporter";

/// Makes requests; knows who sends.
#[derive(Debug)]
pub struct Encoder {
    resource: ResourceAttributesWithSchema,
    scope: InstrumentationScope,
}

// === impl Encoder ===

impl Encoder {
    /// For a sender with these attributes.
    pub fn new(resource: &[(String, String)]) -> Self {
        let attributes = Attributes::from(resource.iter().map(|(k, v)| KeyValue::new(k.clone(), v.clone())));
        Self {
            resource: ResourceAttributesWithSchema { attributes, schema_url: Some(SCHEMA_URL.to_owned()) },
            scope: InstrumentationScope::builder(SCOPE)
                .with_version(env!("CARGO_PKG_VERSION"))
                .with_schema_url(SCHEMA_URL)
                .build(),
        }
    }

    /// Attributes of who sends.
    pub fn resource(&self) -> Resource {
        Resource { attributes: self.resource.attributes.0.clone(), ..Resource::default() }
    }

    /// What the items are said by.
    pub fn scope(&self) -> proto::InstrumentationScope {
        proto::InstrumentationScope::from((&self.scope, None))
    }

    /// The bytes of a request with those of these items that belong to a signal, in this order.
    pub fn request(&self, signal: Signal, items: Vec<Outgoing>) -> Vec<u8> {
        let items = items.into_iter();
        match signal {
            Signal::Traces => {
                let spans = items.filter_map(|item| match item {
                    Outgoing::Span(span) => Some(span),
                    Outgoing::Log(_) => None,
                });
                self.spans(spans).encode_to_vec()
            }
            _ => {
                let records = items.filter_map(|item| match item {
                    Outgoing::Log(record) => Some(record),
                    Outgoing::Span(_) => None,
                });
                self.logs(records).encode_to_vec()
            }
        }
    }

    /// The bytes of a request with spans that the SDK finished.
    pub fn finished(&self, spans: Vec<SpanData>) -> Vec<u8> {
        let resource_spans = group_spans_by_resource_and_scope(spans, &self.resource);
        ExportTraceServiceRequest { resource_spans }.encode_to_vec()
    }

    /// A request with these spans, in this order.
    pub fn spans(&self, spans: impl IntoIterator<Item = Span>) -> ExportTraceServiceRequest {
        let spans = spans.into_iter().map(|span| self.span(span)).collect();
        ExportTraceServiceRequest { resource_spans: group_spans_by_resource_and_scope(spans, &self.resource) }
    }

    /// A request with these log records, in this order.
    pub fn logs(&self, records: impl IntoIterator<Item = LogRecord>) -> ExportLogsServiceRequest {
        let of_scope = ScopeLogs {
            scope: Some(self.scope()),
            log_records: records.into_iter().map(log_record).collect(),
            schema_url: SCHEMA_URL.to_owned(),
        };
        let of_resource = ResourceLogs {
            resource: Some(self.resource()),
            scope_logs: vec![of_scope],
            schema_url: SCHEMA_URL.to_owned(),
        };
        ExportLogsServiceRequest { resource_logs: vec![of_resource] }
    }

    /// A span as the SDK holds a finished one.
    pub fn span(&self, span: Span) -> SpanData {
        let mut events = SpanEvents::default();
        events.events = span.events.into_iter().map(event).collect();
        events.dropped_count = span.dropped_events;
        let mut links = SpanLinks::default();
        links.links = span
            .links
            .into_iter()
            .map(|link| {
                let relation = KeyValue::new(Key::Relation.as_str(), text(link.relation));
                Link::new(context(link.to), vec![relation], 0)
            })
            .collect();
        SpanData {
            span_context: context(span.context),
            parent_span_id: span.parent.map_or(opentelemetry::SpanId::INVALID, span_id),
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: Cow::Owned(span.name),
            start_time: moment(span.start),
            end_time: moment(span.end),
            attributes: attributes(span.attributes),
            dropped_attributes_count: 0,
            events,
            links,
            // What went well or was cancelled says nothing; texts of errors are content.
            status: if span.failed { Status::error("") } else { Status::Unset },
            instrumentation_scope: self.scope.clone(),
        }
    }
}

fn event(event: SpanEvent) -> Event {
    let name = match event.name {
        Text::Word(word) => Cow::Borrowed(word),
        Text::Name(name) => Cow::Owned(name.as_ref().to_owned()),
    };
    Event::new(name, moment(event.time), attributes(event.attributes), 0)
}

fn log_record(record: LogRecord) -> logs::LogRecord {
    let (number, text) =
        if record.warning { (SeverityNumber::Warn, "WARN") } else { (SeverityNumber::Info, "INFO") };
    let mut all = attributes(record.attributes);
    // Collectors and their readers tell repetitions by it.
    all.push(KeyValue::new(Key::RecordId.as_str(), format!("{:016x}", record.id)));
    let (trace_id, span_id) =
        record.context.map_or_else(Default::default, |c| (c.trace.0.to_vec(), c.span.0.to_vec()));
    logs::LogRecord {
        time_unix_nano: nanos(record.time),
        observed_time_unix_nano: nanos(record.observed),
        severity_number: number.into(),
        severity_text: text.to_owned(),
        attributes: Attributes::from(all).0,
        trace_id,
        span_id,
        event_name: record.name,
        ..logs::LogRecord::default()
    }
}

fn attributes(list: Vec<(Key, Value)>) -> Vec<KeyValue> {
    list.into_iter().map(|(key, value)| KeyValue::new(key.as_str(), any(value))).collect()
}

fn text(text: Text) -> StringValue {
    match text {
        Text::Word(word) => word.into(),
        Text::Name(name) => name.into(),
    }
}

fn any(value: Value) -> opentelemetry::Value {
    match value {
        Value::Text(words) => opentelemetry::Value::String(text(words)),
        Value::Int(n) => opentelemetry::Value::I64(n),
        Value::Float(n) => opentelemetry::Value::F64(n),
        Value::Bool(yes) => opentelemetry::Value::Bool(yes),
        Value::Texts(list) => {
            let list = list.into_iter().map(StringValue::from).collect();
            opentelemetry::Value::Array(Array::String(list))
        }
    }
}

fn context(context: Context) -> SpanContext {
    let (trace, span) = (trace_id(context.trace), span_id(context.span));
    SpanContext::new(trace, span, TraceFlags::default(), false, TraceState::NONE)
}

const fn trace_id(id: TraceId) -> opentelemetry::TraceId {
    opentelemetry::TraceId::from_bytes(id.0)
}

const fn span_id(id: SpanId) -> opentelemetry::SpanId {
    opentelemetry::SpanId::from_bytes(id.0)
}

/// Times before 1970 do not exist in OTLP.
fn moment(time: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(0))
}

fn nanos(time: Timestamp) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(0).saturating_mul(1_000_000)
}
