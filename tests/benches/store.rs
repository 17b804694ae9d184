//! Time of the owner task per event, in parts and as a whole. Batches of 1,000 events over 100 sessions, as in the
//! push target of the design; the whole includes commits to a file in the system's temporary folder.
#![allow(clippy::unwrap_used, reason = "a benchmark may stop at a surprise")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{
    ActivityClass, Batch, CallEnd, CallOutcome, CallStart, Commands, Event, Fact, Id, Name, Reducer,
    SessionId, SourceId, Timestamp, ToolClass, Trigger, TurnOutcome, Usage,
};
use agent_session_exporter::session::{Aggregates, Facts, Session, Thresholds};
use agent_session_exporter::store::dedup::Known;
use agent_session_exporter::store::journal::Writer;
use agent_session_exporter::store::sessions::Sessions;
use agent_session_exporter::store::{Options, db, spawn};
use agent_session_exporter::telemetry::Telemetry;

const EVENTS: u64 = 400_000;
const BATCH: u64 = 1_000;
const SESSIONS: u64 = 100;

fn fact(n: u64) -> Fact {
    // Two calls in each ten events of a session, each of which ends with the event behind it.
    let round = n / SESSIONS;
    let call = Id::from(format!("call{}", round / 10 * 2 + u64::from(round % 10 > 3)).as_str());
    match round % 10 {
        0 => Fact::TurnStarted { trigger: Trigger::Person },
        1 | 4 => Fact::ToolStarted(CallStart {
            call,
            tool: Name::from("shell"),
            class: ToolClass::Shell,
            key: Some(n),
            target: None,
            read: None,
            commands: Commands::default(),
            background: false,
            asks: None,
            nested: false,
        }),
        2 | 5 => Fact::ToolEnded(CallEnd {
            call,
            outcome: CallOutcome::Ok,
            exit_code: Some(0),
            diff_lines: None,
            error: None,
            output: Some(n),
            read: None,
        }),
        3 | 6 => Fact::Usage(Usage { input: 10, output: 5, ..Usage::default() }),
        9 => Fact::TurnEnded {
            outcome: TurnOutcome::Completed,
            error: None,
            reset: None,
            denied: false,
            result_known: true,
        },
        _ => Fact::Activity { class: ActivityClass::Work, message: false },
    }
}

fn events() -> Vec<Event> {
    let source = SourceId::from("push");
    let sessions: Vec<_> = (0..SESSIONS).map(|i| SessionId::from(format!("s{i}").as_str())).collect();
    let start = Clock::system().now();
    (0..EVENTS)
        .map(|n| {
            let at = start.plus(i64::try_from(n / 200).unwrap());
            let mut event = Event::new(&source, &sessions[(n % SESSIONS) as usize], at, fact(n));
            event.id = Some(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            event.time = Some(at);
            event.counting = agent_session_exporter::event::Counting::Always;
            event.project = Some(Name::from("shop"));
            event
        })
        .collect()
}

fn report(what: &str, started: Instant) {
    let took = started.elapsed();
    println!("{what:<28} {:>7.0} ns an event", took.as_nanos() as f64 / EVENTS as f64);
}

fn parts(events: &[Event]) {
    let mut known = Known::default();
    let started = Instant::now();
    for event in events {
        black_box(known.insert(&event.source, event.id.unwrap(), event.time));
    }
    report("known ids", started);

    let mut writer = Writer::default();
    let started = Instant::now();
    for (n, event) in events.iter().enumerate() {
        writer.push(n % SESSIONS as usize, event);
        if n as u64 % BATCH == BATCH - 1 {
            black_box(writer.take());
        }
    }
    report("journal", started);

    let mut sessions = Sessions::default();
    let mut sums = Aggregates::default();
    let mut summing = Duration::ZERO;
    let own = events.to_vec();
    let started = Instant::now();
    for (n, event) in own.into_iter().enumerate() {
        let slot = sessions.slot_for(&event, 0).unwrap();
        sessions.put(slot, event);
        if n as u64 % BATCH == BATCH - 1 {
            sessions.fold(Timestamp::from_millis(0), |facts, change, _| {
                let started = Instant::now();
                sums.take(&facts.source, change);
                summing += started.elapsed();
            });
        }
    }
    report("fold", started + summing);
    report("sums", Instant::now().checked_sub(summing).unwrap());
}

/// Events of one session that each come half a second late, one by one: the dearest there are.
fn late() {
    let (source, session) = (SourceId::from("push"), SessionId::from("s"));
    let start = Clock::system().now();
    let mut fold = Session::new(Facts::new(source.clone(), session.clone(), start));
    let mut apply = |n: u64, at: i64| {
        let mut event = Event::new(&source, &session, start.plus(at), fact(n * SESSIONS));
        event.id = Some(n);
        event.time = Some(start.plus(at));
        black_box(fold.apply(event, Timestamp::from_millis(0)));
    };
    let mut took = Duration::ZERO;
    for n in 0..2_000 {
        let at = i64::try_from(n).unwrap() * 10;
        apply(2 * n, at);
        let started = Instant::now();
        apply(2 * n + 1, at - 500);
        took += started.elapsed();
    }
    println!("{:<28} {:>7.0} ns an event", "half a second late", took.as_nanos() as f64 / 2_000.0);
}

fn whole(events: Vec<Event>) {
    let folder = tempfile::tempdir().unwrap();
    let opened = db::open_folder(folder.path(), 1, Timestamp::from_millis(0)).unwrap();
    let options = Options {
        max_tracked: 50_000,
        retention: Duration::from_secs(86_400),
        thresholds: Thresholds::default(),
        capabilities: Default::default(),
        pushed: Default::default(),
        retell: Default::default(),
        expected_scans: Vec::new(),
        see_stops: Default::default(),
        file_sources: Vec::new(),
        read_only_agents: Vec::new(),
        spool: None,
        folder: Some(folder.path().to_owned()),
        traced: false,
    };
    let telemetry = Arc::new(Telemetry::new());
    let reducer = Arc::new(Reducer::new([7; 16], Runners::default()));
    let store = spawn(opened, options, Clock::system(), reducer, telemetry.clone()).unwrap();
    let mut batches: Vec<Vec<Event>> = Vec::new();
    let mut events = events.into_iter().peekable();
    while events.peek().is_some() {
        batches.push(events.by_ref().take(BATCH as usize).collect());
    }
    let (tell, answers) = channel();
    let count = batches.len();
    let started = Instant::now();
    for events in batches {
        let tell = tell.clone();
        let reply = Box::new(move |result| tell.send(result).unwrap());
        store.live.blocking_send(Batch { events, reply: Some(reply), ..Batch::default() }).unwrap();
    }
    for _ in 0..count {
        answers.recv().unwrap().unwrap();
    }
    report("all of it, durable", started);
    println!("{count} batches in {} commits", telemetry.store_commits.get());
}

fn main() {
    let events = events();
    parts(&events);
    late();
    whole(events);
}
