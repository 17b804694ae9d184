//! Every answer a collector can give, over both protocols: what arrives, what waits, what is lost, and what is counted.

use std::time::{Duration, Instant};

use agent_session_exporter::otlp::Protocol;
use agent_session_exporter::spans::Outgoing;
use tonic::Code;

use crate::collector::{Collector, Say, nobody};
use crate::common::disk::Disk;
use crate::stand::{BOTH, Exporter, encoded, env, log, span, spans, until};

/// Sends thirty spans to a collector that says this first; gives both after everything is over.
fn told(protocol: Protocol, says: Vec<Say>) -> (Collector, Exporter) {
    let collector = Collector::start();
    collector.memory.script(says);
    let mut env = env(collector.address, protocol);
    env.insert("OTEL_EXPORTER_OTLP_TIMEOUT".to_owned(), "400".to_owned());
    let exporter = Exporter::start(&Disk::default(), &env);
    exporter.put(spans(0..30));
    exporter.until_empty();
    (collector, exporter)
}

fn status(http: u16, code: Code) -> Say {
    Say::Status(http, None, code, None)
}

/// Sent, rejected, refused, dropped.
fn counts(exporter: &Exporter) -> [u64; 4] {
    ["sent", "rejected", "refused", "dropped"].map(|result| exporter.items(result))
}

#[test]
fn what_passes_is_waited_for_and_everything_arrives_once() {
    let seconds = ("retry-after", "0".to_owned());
    let passing = [
        ("unavailable", status(503, Code::Unavailable)),
        ("bad gateway", status(502, Code::Aborted)),
        ("too many", Say::Status(429, Some(seconds), Code::ResourceExhausted, Some(Duration::ZERO))),
        ("no answer", Say::Never),
        ("login", status(401, Code::Unauthenticated)),
        ("forbidden", status(403, Code::PermissionDenied)),
        ("another path", status(404, Code::Unimplemented)),
        ("redirect", status(302, Code::NotFound)),
        ("a failure", status(500, Code::Internal)),
        ("too long an answer", Say::Body(vec![b'x'; 3 << 20], "application/x-protobuf")),
    ];
    for protocol in BOTH {
        for (what, say) in &passing {
            let (collector, exporter) = told(protocol, vec![say.clone(), say.clone()]);
            assert_eq!(collector.memory.spans(), encoded(0..30), "{what} over {protocol:?}");
            assert_eq!(collector.memory.requests().len(), 3, "{what} over {protocol:?}");
            assert_eq!(counts(&exporter), [30, 0, 0, 0], "{what} over {protocol:?}");
            exporter.end();
        }
    }
}

#[test]
fn what_is_no_answer_of_a_collector_does_not_make_spans_vanish() {
    let bodies = [
        Say::Body(b"<html>please log in</html>".to_vec(), "text/html"),
        Say::Body(b"\xff\xff\xff garbage".to_vec(), "application/x-protobuf"),
        Say::Body(b"[1".to_vec(), "application/json"),
    ];
    let (collector, exporter) = told(Protocol::Http, bodies.to_vec());
    assert_eq!(collector.memory.spans(), encoded(0..30));
    assert_eq!(counts(&exporter), [30, 0, 0, 0]);
    exporter.end();
}

#[test]
fn a_page_of_a_proxy_says_nothing_about_the_items() {
    // Whatever its status, over both protocols: nginx answers so where it misses a certificate.
    for protocol in BOTH {
        let pages = [400, 401, 500, 503].map(|status| Say::Page(status, "<html>no</html>"));
        let (collector, exporter) = told(protocol, pages.to_vec());
        assert_eq!(collector.memory.spans(), encoded(0..30), "{protocol:?}");
        assert_eq!(collector.memory.requests().len(), 5, "{protocol:?}");
        assert_eq!(counts(&exporter), [30, 0, 0, 0], "{protocol:?}");
        exporter.end();
    }
}

#[test]
fn a_json_answer_is_an_answer() {
    let json = br#"{"partialSuccess":{"rejectedSpans":"2"}}"#.to_vec();
    let (collector, exporter) = told(Protocol::Http, vec![Say::Body(json, "application/json")]);
    assert_eq!(collector.memory.requests().len(), 1);
    assert_eq!(counts(&exporter), [28, 2, 0, 0]);
    exporter.end();
}

#[test]
fn partial_success_is_counted_and_not_sent_again() {
    for protocol in BOTH {
        let (collector, exporter) = told(protocol, vec![Say::Partly(4, "too old")]);
        assert_eq!(counts(&exporter), [26, 4, 0, 0], "{protocol:?}");
        exporter.put(spans(30..40));
        exporter.until_empty();
        assert_eq!(collector.memory.requests().len(), 2, "{protocol:?}");
        assert_eq!(collector.memory.spans(), encoded(0..40), "{protocol:?}");
        exporter.end();
    }
}

#[test]
fn what_is_refused_is_counted_and_the_next_goes_on() {
    for protocol in BOTH {
        let (collector, exporter) = told(protocol, vec![status(400, Code::InvalidArgument)]);
        assert_eq!(counts(&exporter), [0, 0, 30, 0], "{protocol:?}");
        exporter.put(spans(30..40));
        exporter.until_empty();
        assert_eq!(collector.memory.spans(), encoded(30..40), "{protocol:?}");
        assert_eq!(counts(&exporter), [10, 0, 30, 0], "{protocol:?}");
        exporter.end();
    }
}

#[test]
fn items_over_which_a_server_fails_each_time_do_not_hold_up_the_rest_for_ever() {
    for protocol in BOTH {
        let failure = status(500, Code::Internal);
        let (collector, exporter) = told(protocol, vec![failure; 5]);
        assert_eq!(collector.memory.requests().len(), 5, "{protocol:?}");
        assert_eq!(counts(&exporter), [0, 0, 30, 0], "{protocol:?}");
        exporter.end();
    }
}

#[test]
fn too_much_at_once_is_sent_in_pieces() {
    for protocol in BOTH {
        let too_large = status(413, Code::ResourceExhausted);
        // Thirty, fifteen, seven; the eighth of those that fit comes with seven again.
        let (collector, exporter) = told(protocol, vec![too_large; 2]);
        let sizes: Vec<usize> = collector.memory.requests().iter().map(|r| r.spans.len()).collect();
        assert_eq!(sizes, [30, 15, 7, 7, 7, 7, 2], "{protocol:?}");
        assert_eq!(collector.memory.spans(), encoded(0..30), "{protocol:?}");
        assert_eq!(counts(&exporter), [30, 0, 0, 0], "{protocol:?}");
        exporter.end();
    }
}

#[test]
fn a_single_item_that_is_too_large_is_left_out() {
    for protocol in BOTH {
        let collector = Collector::start();
        // Over gRPC it may have no room at all, which may pass.
        let tries = if protocol == Protocol::Grpc { 5 } else { 1 };
        collector.memory.script(vec![status(413, Code::ResourceExhausted); tries]);
        let exporter = Exporter::start(&Disk::default(), &env(collector.address, protocol));
        exporter.put(spans(0..1));
        exporter.until_empty();
        assert_eq!(counts(&exporter), [0, 0, 1, 0], "{protocol:?}");
        exporter.end();
    }
}

/// Some say so for as long as they have no room, and not how long that will be.
#[test]
fn a_server_of_grpc_that_is_full_for_a_while_gets_everything_afterwards() {
    // Thirty, fifteen, seven, three, one: pieces help nothing; then one is tried again.
    let full = status(429, Code::ResourceExhausted);
    let (collector, exporter) = told(Protocol::Grpc, vec![full; 8]);
    assert_eq!(collector.memory.spans(), encoded(0..30));
    assert_eq!(counts(&exporter), [30, 0, 0, 0]);
    exporter.end();
}

#[test]
fn a_server_that_fails_over_everything_costs_little_until_it_is_back() {
    for protocol in BOTH {
        let collector = Collector::start();
        // Five tries a request: after the first, pauses have their full length.
        collector.memory.script(vec![status(500, Code::Internal); 15]);
        let exporter = Exporter::start(&Disk::default(), &env(collector.address, protocol));
        exporter.put(spans(0..400));
        exporter.until_empty();
        assert_eq!(counts(&exporter), [100, 0, 300, 0], "{protocol:?}");
        let times: Vec<_> = collector.memory.requests().iter().map(|r| r.at.unwrap()).collect();
        for n in [6, 7, 8, 9, 11, 12, 13, 14] {
            // At least half of the longest one, which is left to chance.
            let pause = times[n] - times[n - 1];
            assert!(pause >= Duration::from_millis(40), "{protocol:?}: {n} after {pause:?}");
        }
        exporter.end();
    }
}

#[test]
fn a_server_that_asks_to_come_back_at_once_is_not_asked_all_the_time() {
    for protocol in BOTH {
        let header = ("retry-after", "0".to_owned());
        let say = Say::Status(429, Some(header), Code::ResourceExhausted, Some(Duration::ZERO));
        let started = Instant::now();
        let (collector, exporter) = told(protocol, vec![say; 20]);
        // 20 ms, 40 ms, and 80 ms from then on, of which up to a half is left to chance.
        assert!(started.elapsed() >= Duration::from_millis(700), "{protocol:?}: {:?}", started.elapsed());
        assert_eq!(collector.memory.spans(), encoded(0..30), "{protocol:?}");
        exporter.end();
    }
}

#[test]
fn a_server_is_left_alone_as_long_as_it_wants() {
    let wait = Duration::from_secs(1);
    for protocol in BOTH {
        let header = ("retry-after", "1".to_owned());
        let say = Say::Status(429, Some(header), Code::ResourceExhausted, Some(wait));
        let (collector, exporter) = told(protocol, vec![say]);
        let times: Vec<_> = collector.memory.requests().iter().map(|r| r.at.unwrap()).collect();
        assert_eq!(times.len(), 2, "{protocol:?}");
        assert!(times[1] - times[0] >= wait, "{protocol:?}: {:?}", times[1] - times[0]);
        assert_eq!(collector.memory.spans(), encoded(0..30), "{protocol:?}");
        exporter.end();
    }
}

#[test]
fn a_slow_collector_gets_everything_once() {
    for protocol in BOTH {
        let (collector, exporter) = told(protocol, vec![Say::Slowly(Duration::from_millis(250))]);
        assert_eq!(collector.memory.requests().len(), 1, "{protocol:?}");
        assert_eq!(collector.memory.spans(), encoded(0..30), "{protocol:?}");
        exporter.end();
    }
}

#[test]
fn a_refused_connection_is_waited_out() {
    for protocol in BOTH {
        let address = nobody();
        let exporter = Exporter::start(&Disk::default(), &env(address, protocol));
        exporter.put(spans(0..250));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(exporter.waiting(), 250, "{protocol:?}");
        let collector = Collector::at(address, Default::default());
        exporter.until_empty();
        assert_eq!(collector.memory.spans(), encoded(0..250), "{protocol:?}");
        exporter.end();
    }
}

#[test]
fn items_of_which_few_fill_a_request_do_not_wait_for_each_other() {
    let collector = Collector::start();
    let mut env = env(collector.address, Protocol::Http);
    env.insert("OTEL_BSP_SCHEDULE_DELAY".to_owned(), "2000".to_owned());
    let exporter = Exporter::start(&Disk::default(), &env);
    let large = (0..60).map(|n| {
        let name = "x".repeat(40_000);
        Outgoing::Span(agent_session_exporter::spans::Span { name, ..span(n) })
    });
    let started = Instant::now();
    exporter.put(large);
    exporter.until_empty();
    let requests = collector.memory.requests().len();
    assert!((8..=12).contains(&requests), "{requests} requests");
    assert!(started.elapsed() < Duration::from_secs(9), "{:?}", started.elapsed());
    exporter.end();
}

#[test]
fn one_signal_does_not_wait_for_another() {
    for protocol in BOTH {
        let collector = Collector::start();
        let mut env = env(collector.address, protocol);
        env.insert("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT".to_owned(), format!("http://{}", nobody()));
        let exporter = Exporter::start(&Disk::default(), &env);
        let mixed = (0..200).flat_map(|n| [Outgoing::Span(span(n)), Outgoing::Log(log(n))]);
        exporter.put(mixed);
        until("the log records are there", || collector.memory.logs().len() == 200);
        until("they left the spool", || exporter.waiting() == 200);
        assert_eq!(counts(&exporter), [200, 0, 0, 0], "{protocol:?}");
        exporter.end();
    }
}
