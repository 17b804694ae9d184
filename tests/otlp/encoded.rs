//! The form of OTLP: ids and times as they are, names from the table, nothing else.

use std::time::Instant;

use agent_session_exporter::otlp::Encoder;
use agent_session_exporter::spans::SCHEMA_URL;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use prost::Message as _;

use crate::collector::Collector;
use crate::common::disk::Disk;
use crate::stand::{BOTH, Exporter, env, log, span};

fn shown(attributes: &[KeyValue]) -> String {
    fn value(v: &AnyValue) -> String {
        match v.value.as_ref().unwrap() {
            Value::StringValue(text) => text.clone(),
            Value::IntValue(n) => n.to_string(),
            Value::DoubleValue(n) => n.to_string(),
            Value::BoolValue(yes) => yes.to_string(),
            Value::ArrayValue(list) => format!("{:?}", list.values.iter().map(value).collect::<Vec<_>>()),
            other => panic!("{other:?} is none of ours"),
        }
    }
    let all = attributes.iter().map(|kv| format!("{}={}", kv.key, value(kv.value.as_ref().unwrap())));
    all.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_span_is_sent_as_it_is() {
    let given = span(5);
    let request = Encoder::new(&[("service.name".to_owned(), "x".to_owned())]).spans([given.clone()]);
    let of_resource = &request.resource_spans[0];
    assert_eq!(shown(&of_resource.resource.as_ref().unwrap().attributes), "service.name=x");
    let of_scope = &of_resource.scope_spans[0];
    let scope = of_scope.scope.as_ref().unwrap();
    assert_eq!(
        (scope.name.as_str(), scope.version.as_str()),
        ("agent_session_exporter", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(of_scope.schema_url, SCHEMA_URL);
    let span = &of_scope.spans[0];
    assert_eq!(span.trace_id, given.context.trace.0);
    assert_eq!(span.span_id, given.context.span.0);
    assert_eq!(span.parent_span_id, given.parent.unwrap().0);
    assert_eq!(span.start_time_unix_nano, 1_795_966_474_688_000_000);
    assert_eq!(span.end_time_unix_nano, 1_795_966_474_694_000_000);
    assert_eq!(span.kind, 1, "internal");
    assert_eq!(
        shown(&span.attributes),
        "gen_ai.operation.name=execute_tool gen_ai.conversation.id=session-0 agent_session.step.index=5 \
         agent_session.usage.cost_dollars=0.25 agent_session.end_observed=false agent_session.step.name=[\"a\", \"b\"]"
    );
    assert_eq!(span.status.as_ref().unwrap().code, 2, "the fifth failed");
    assert_eq!(span.status.as_ref().unwrap().message, "");
    assert_eq!(span.dropped_events_count, 2);
    assert_eq!(span.events[0].name.as_str(), "agent_session.progress");
    assert_eq!(span.events[0].time_unix_nano, 1_795_966_474_689_000_000);
    assert_eq!(shown(&span.events[0].attributes), "agent_session.progress.kind=commit");
    assert_eq!(span.links[0].span_id, given.links[0].to.span.0);
    assert_eq!(span.links[0].trace_id, given.links[0].to.trace.0);
    assert_eq!(shown(&span.links[0].attributes), "agent_session.link.relation=previous_run");
    // That a parent is not remote is known; nothing is said of sampling.
    assert_eq!((span.flags, span.trace_state.as_str()), (0x100, ""));

    let fine = Encoder::new(&[]).spans([crate::stand::span(50)]);
    let fine = &fine.resource_spans[0].scope_spans[0].spans[0];
    assert_eq!(fine.parent_span_id, Vec::<u8>::new());
    let well = Encoder::new(&[]).spans([crate::stand::span(1)]);
    assert_eq!(well.resource_spans[0].scope_spans[0].spans[0].status.as_ref().unwrap().code, 0, "unset");
}

#[test]
fn log_records_name_their_span_and_themselves() {
    let request = Encoder::new(&[]).logs([log(0), log(1)]);
    let of_scope = &request.resource_logs[0].scope_logs[0];
    assert_eq!(of_scope.schema_url, SCHEMA_URL);
    let [first, second] = &of_scope.log_records[..] else { panic!("two records") };
    assert_eq!(first.event_name, "agent_session.step.started");
    assert_eq!(first.time_unix_nano, 1_795_966_474_638_000_000);
    assert_eq!(first.observed_time_unix_nano, 1_795_966_474_643_000_000);
    assert_eq!(first.trace_id, span(0).context.trace.0);
    assert_eq!(first.span_id, span(0).context.span.0);
    assert_eq!((first.severity_text.as_str(), first.severity_number), ("WARN", 13));
    assert_eq!((second.severity_text.as_str(), second.severity_number), ("INFO", 9));
    assert_eq!(shown(&first.attributes), "agent_session.step.kind=build log.record.uid=0000000000000001");
    assert!(first.body.is_none());
}

#[test]
fn who_sends_and_headers_and_packing_arrive() {
    for protocol in BOTH {
        let collector = Collector::start();
        let mut env = env(collector.address, protocol);
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=s3cret%3D,x-scope=a b"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_SERVICE_NAME", "my-agents"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=other"),
        ] {
            env.insert(name.to_owned(), value.to_owned());
        }
        let exporter = Exporter::start(&Disk::default(), &env);
        exporter.put(crate::stand::spans(0..40));
        exporter.until_empty();
        let requests = collector.memory.requests();
        let request = requests.first().unwrap();
        assert_eq!(request.spans.len(), 40);
        assert_eq!(request.header("x-api-key"), Some("s3cret="), "{protocol:?}");
        assert_eq!(request.header("x-scope"), Some("a b"), "{protocol:?}");
        let packed = request.header("content-encoding").or(request.header("grpc-encoding"));
        assert_eq!(packed, Some("gzip"), "{protocol:?}");
        assert!(request.header("user-agent").unwrap().starts_with("agent-session-exporter/"), "{protocol:?}");
        assert_eq!(
            shown(&request.resource[0].attributes),
            format!(
                "deployment.environment.name=test service.name=my-agents service.version={} \
                 service.instance.id=test-instance",
                env!("CARGO_PKG_VERSION")
            )
        );
        exporter.end();
    }
}

#[test]
fn a_batch_is_encoded_in_no_time() {
    let encoder = Encoder::new(&[]);
    let spans: Vec<_> = (0..5_000).map(span).collect();
    let started = Instant::now();
    let bytes = encoder.spans(spans).encode_to_vec().len();
    let took = started.elapsed();
    assert!(bytes > 1_000_000, "{bytes}");
    // Without optimisation and beside other tests; the product is some thirty times as fast.
    assert!(took.as_secs_f64() < 2.0, "{took:?} for 5,000 spans");
}
