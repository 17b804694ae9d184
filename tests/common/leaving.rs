//! What leaves by OTLP, for the tests that search all of it: of a run that sends all three signals, while nobody takes them
//! the state file that holds them, then every byte that came.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tonic::Code;

use crate::collector::{Collector, Say};
use crate::running::{Exporter, wait_until};

const SIGNALS: [&str; 3] = ["TRACES", "LOGS", "METRICS"];
const WAITING: &str = "agent_session_exporter_otlp_spool_items";

/// A collector that takes nothing yet.
pub(crate) fn closed() -> Collector {
    let collector = Collector::start();
    let busy =
        (503, Some(("retry-after", "1".to_owned())), Code::Unavailable, Some(Duration::from_millis(300)));
    collector.memory.always(Some(Say::Status(busy.0, busy.1, busy.2, busy.3)));
    collector
}

/// Sends everything there, each signal over the protocol named for it.
pub(crate) fn variables(collector: &Collector, protocols: [&str; 3]) -> BTreeMap<String, String> {
    let http = format!("http://{}", collector.address);
    let pairs = SIGNALS
        .iter()
        .zip(protocols)
        .map(|(signal, protocol)| (format!("OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"), protocol.to_owned()));
    let others = [("OTEL_EXPORTER_OTLP_ENDPOINT", http), ("OTEL_METRIC_EXPORT_INTERVAL", "500".to_owned())];
    pairs.chain(others.map(|(name, value)| (name.to_owned(), value))).collect()
}

/// Everything of a run that was fed, to whoever searches it: at least so many spans and log records have to be there.
pub(crate) fn search(
    exporter: &Exporter,
    state: &Path,
    collector: &Collector,
    least: (usize, usize),
    mut clean: impl FnMut(&str, &[u8]),
) {
    let waiting = || exporter.sample(WAITING).unwrap() as usize;
    let started = std::time::Instant::now();
    wait_until("enough waits", || {
        // What is over is told some seconds later; asking costs time of its own.
        std::thread::sleep(Duration::from_millis(500));
        started.elapsed() > Duration::from_secs(10) && waiting() >= least.0 + least.1
    });
    let file = std::fs::read(state.join("state.redb")).unwrap();
    assert!(
        file.windows(13).any(|w| w == b"execute_tool "),
        "no span lies there in a form that can be searched"
    );
    clean("the state file with what waits", &file);

    let refused = collector.memory.requests();
    collector.memory.always(None);
    wait_until("nothing waits any more", || waiting() == 0);
    let metrics = || collector.memory.requests().iter().filter(|r| r.taken && !r.metrics.is_empty()).count();
    wait_until("metrics came", || metrics() > 0);
    // What is over is told when its end has passed: some of it only now.
    wait_until("enough spans and log records came", || {
        collector.memory.spans().len() >= least.0 && collector.memory.logs().len() >= least.1
    });
    let requests = collector.memory.requests();
    assert!(requests.len() > refused.len());
    for request in &requests {
        clean("a request", &request.bytes);
        clean("headers of a request", format!("{} {:?}", request.path, request.headers).as_bytes());
    }
}
