//! Made spans and log records, each different, with everything they can have.

use agent_session_exporter::event::Timestamp;
use agent_session_exporter::spans::{
    Context, Key, Link, LogRecord, Outgoing, Span, SpanEvent, SpanId, TraceId, Value,
};

const BEGIN: i64 = 1_795_966_474_638;

/// The `n`th span, with everything a span can have.
pub(crate) fn span(n: u64) -> Span {
    let at = |ms: i64| Timestamp::from_millis(BEGIN + n as i64 * 10 + ms);
    let context = Context { trace: TraceId::of(n / 50), span: SpanId::of(n) };
    Span {
        context,
        parent: (!n.is_multiple_of(50)).then(|| SpanId::of(n / 50 * 50)),
        name: format!("execute_tool tool{}", n % 7),
        start: at(0),
        end: at(1 + n as i64 % 1000),
        attributes: vec![
            (Key::OperationName, Value::from("execute_tool")),
            (Key::ConversationId, Value::from(format!("session-{}", n / 50))),
            (Key::StepIndex, Value::from(n)),
            (Key::CostDollars, Value::Float(0.25)),
            (Key::EndObserved, Value::from(n.is_multiple_of(3))),
            (Key::StepName, Value::Texts(vec!["a".to_owned(), "b".to_owned()])),
        ],
        events: vec![SpanEvent {
            time: at(1),
            name: "agent_session.progress".into(),
            attributes: vec![(Key::ProgressKind, Value::from("commit"))],
        }],
        dropped_events: u32::try_from(n % 3).unwrap(),
        links: vec![Link {
            to: Context { trace: TraceId::of(n / 50 + 1), span: SpanId::of(n + 1) },
            relation: "previous_run".into(),
        }],
        failed: n.is_multiple_of(5),
    }
}

pub(crate) fn spans(range: std::ops::Range<u64>) -> Vec<Outgoing> {
    range.map(|n| Outgoing::Span(span(n))).collect()
}

pub(crate) fn log(n: u64) -> LogRecord {
    LogRecord {
        name: "agent_session.step.started".to_owned(),
        time: Timestamp::from_millis(BEGIN + n as i64),
        observed: Timestamp::from_millis(BEGIN + n as i64 + 5),
        context: Some(span(n).context),
        attributes: vec![(Key::StepKind, Value::from("build"))],
        id: n + 1,
        warning: n.is_multiple_of(2),
    }
}

/// As the collector gets them.
pub(crate) fn encoded(range: std::ops::Range<u64>) -> Vec<opentelemetry_proto::tonic::trace::v1::Span> {
    let encoder = agent_session_exporter::otlp::Encoder::new(&[]);
    let mut request = encoder.spans(range.map(span));
    request.resource_spans.remove(0).scope_spans.remove(0).spans
}
