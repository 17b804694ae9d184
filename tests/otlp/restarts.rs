//! The collector dies and comes back while spans flow, and the exporter with it: each arrives once, in order.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::Span;

use crate::collector::{Collector, Say};
use crate::common::disk::{Crash, Disk, Rng};
use crate::stand::{BOTH, Exporter, encoded, env, spans, until};

const SPANS: u64 = 10_000;

#[test]
fn ten_restarts_of_the_collector_and_three_of_the_exporter_lose_and_repeat_nothing() {
    for protocol in BOTH {
        let disk = Disk::default();
        let mut collector = Collector::start();
        let memory = collector.memory.clone();
        let env = env(collector.address, protocol);
        let mut exporter = Exporter::start(&disk, &env);
        for round in 0..10 {
            let first = round * SPANS / 10;
            for part in 0..10 {
                let cut = memory.cut();
                if part == 4 {
                    memory.always(Some(Say::Never));
                }
                exporter.put(spans(first + part * 100..first + (part + 1) * 100));
                if part == 4 {
                    until("a request is on its way", || memory.cut() > cut);
                    let (address, memory) = collector.kill();
                    if round % 3 == 2 {
                        // While nobody answers: what waits is there again afterwards.
                        exporter.end();
                        exporter = Exporter::start(&disk, &env);
                    }
                    collector = Collector::at(address, memory);
                }
            }
        }
        exporter.until_empty();
        let arrived = memory.spans();
        assert_eq!(arrived.len() as u64, SPANS, "{protocol:?}");
        assert!(arrived == encoded(0..SPANS), "other spans, or in another order, over {protocol:?}");
        assert!(memory.cut() >= 10, "it died {} times in a request, over {protocol:?}", memory.cut());
        exporter.end();
    }
}

#[test]
fn power_that_goes_off_repeats_one_request_at_most_and_with_the_same_content() {
    for protocol in BOTH {
        let disk = Disk::default();
        let collector = Collector::start();
        let env = env(collector.address, protocol);
        let mut rng = Rng::new(11);
        let total = 2_000;
        let mut exporter = Exporter::start(&disk, &env);
        let mut crashes = 0;
        for (i, kind) in [Crash::DropsAll, Crash::KeepsSome, Crash::Tears].into_iter().enumerate() {
            let part = total / 4 * i as u64..total / 4 * (i as u64 + 1);
            exporter.put(spans(part.clone()));
            let seen = collector.memory.requests().len();
            until("something is on its way", || collector.memory.requests().len() > seen);
            disk.crash(kind, &mut rng);
            exporter.vanish();
            crashes += 1;
            exporter = Exporter::start(&disk, &env);
        }
        exporter.put(spans(total / 4 * 3..total));
        exporter.until_empty();
        let wanted = encoded(0..total);
        let mut first: Vec<Span> = Vec::new();
        let mut known: BTreeMap<Vec<u8>, Span> = BTreeMap::new();
        let mut repeated = 0;
        for span in collector.memory.spans() {
            match known.insert(span.span_id.clone(), span.clone()) {
                Some(before) => {
                    repeated += 1;
                    assert_eq!(before, span, "the same id with another content");
                }
                None => first.push(span),
            }
        }
        assert!(first == wanted, "{} of {} over {protocol:?}", first.len(), wanted.len());
        assert!(repeated <= crashes * 100, "{repeated} spans came again after {crashes} crashes");
        exporter.end();
    }
}

#[test]
fn the_last_try_at_the_end_takes_what_is_there_and_no_longer_than_it_may() {
    for protocol in BOTH {
        let collector = Collector::start();
        let mut env = env(collector.address, protocol);
        // Nothing would leave by itself yet.
        env.insert("OTEL_BSP_SCHEDULE_DELAY".to_owned(), "600000".to_owned());
        let exporter = Exporter::start(&Disk::default(), &env);
        exporter.put(spans(0..30));
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(collector.memory.requests().len(), 0, "{protocol:?}");
        exporter.end();
        assert_eq!(collector.memory.spans(), encoded(0..30), "{protocol:?}");

        // With nobody there the end does not wait, and nothing is lost.
        let (address, memory) = collector.kill();
        let disk = Disk::default();
        let exporter = Exporter::start(&disk, &env);
        exporter.put(spans(30..60));
        let started = Instant::now();
        exporter.end();
        assert!(started.elapsed() < Duration::from_secs(5), "{protocol:?}: {:?}", started.elapsed());
        let collector = Collector::at(address, memory);
        let exporter = Exporter::start(&disk, &env);
        exporter.end();
        assert_eq!(collector.memory.spans(), encoded(0..60), "{protocol:?}");
    }
}
