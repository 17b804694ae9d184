//! What the owner concludes by itself, once: calls cut off by their turn's end, episodes of being stalled.

use std::time::Duration;

use agent_session_exporter::event::{
    ActivityClass, CallOutcome, CallStart, Commands, Event, Fact, Id, Name, SourceId, ToolClass, Trigger,
    TurnOutcome,
};
use agent_session_exporter::session::{Count, Reason};
use agent_session_exporter::store::{Opened, Options, db};

use crate::common::disk::Disk;
use crate::common::owner::{KEY, Life, event, facts, now, options, sum};

const MINUTE: i64 = 60_000;
/// Time for two ticks at least.
const TICKS: Duration = Duration::from_millis(2_300);

fn old_store(disk: &Disk) -> Opened {
    db::open(&disk.backend(), KEY, now().plus(-24 * 60 * MINUTE)).unwrap().unwrap()
}

fn begin(source: &str, minutes_ago: i64) -> Event {
    event(source, "s", now().plus(-minutes_ago * MINUTE), Fact::TurnStarted { trigger: Trigger::Person })
}

#[test]
fn calls_left_open_are_interrupted_once() {
    let disk = Disk::default();
    let life = Life::with(old_store(&disk), options());
    let start = CallStart {
        call: Id::from("c"),
        tool: Name::from("shell"),
        class: ToolClass::Shell,
        key: None,
        target: None,
        read: None,
        commands: Commands::default(),
        background: false,
        asks: None,
        nested: false,
    };
    let ended = Fact::TurnEnded {
        outcome: TurnOutcome::Completed,
        error: None,
        reset: None,
        denied: false,
        result_known: true,
    };
    let at = now().plus(-3_000);
    let events = vec![
        event("push", "s", at.plus(-2_000), Fact::TurnStarted { trigger: Trigger::Person }),
        event("push", "s", at.plus(-1_000), Fact::ToolStarted(start)),
        event("push", "s", at, ended),
    ];
    life.pushed(events).unwrap();
    let interrupted = Count::ToolCall(Name::from("shell"), CallOutcome::Interrupted);
    let shown = life.until("its turn", |s| facts(s, "push", "s").is_some_and(|f| f.turn_end.is_some()));
    assert_eq!(sum(&shown, "push", &interrupted), 0, "not before five seconds are over");
    life.until("it is interrupted", |s| sum(s, "push", &interrupted) == 1);
    std::thread::sleep(TICKS);
    assert_eq!(sum(&life.end(), "push", &interrupted), 1);
    let life = Life::with(old_store(&disk), options());
    std::thread::sleep(TICKS);
    let last = life.end();
    assert_eq!(sum(&last, "push", &interrupted), 1);
    assert!(facts(&last, "push", "s").unwrap().open_calls.is_empty());
}

#[test]
fn an_episode_of_silence_is_counted_once() {
    let disk = Disk::default();
    let silent = Count::Stall(Reason::Silent);
    let life = Life::with(old_store(&disk), options());
    life.pushed(vec![begin("push", 40)]).unwrap();
    life.until("it stalls", |s| sum(s, "push", &silent) == 1);
    std::thread::sleep(TICKS);
    assert_eq!(sum(&life.end(), "push", &silent), 1);
    let life = Life::with(old_store(&disk), options());
    std::thread::sleep(TICKS);
    assert_eq!(sum(&life.snapshot(), "push", &silent), 1, "a restart repeats nothing");
    let work = Fact::Activity { class: ActivityClass::Work, message: false };
    life.pushed(vec![event("push", "s", now().plus(-15 * MINUTE), work)]).unwrap();
    life.until("a new episode", |s| sum(s, "push", &silent) == 2);
    std::thread::sleep(TICKS);
    assert_eq!(sum(&life.end(), "push", &silent), 2);
}

#[test]
fn silence_means_nothing_before_the_first_scan() {
    let disk = Disk::default();
    let silent = Count::Stall(Reason::Silent);
    let life = Life::with(old_store(&disk), options());
    life.read(vec![begin("files", 8)], 1, 1);
    assert_eq!(sum(&life.end(), "files", &silent), 0);
    // Five minutes later the exporter comes back; the file has grown meanwhile, but was not read yet.
    let later = agent_session_exporter::clock::Clock::shifted(5 * MINUTE);
    let options = Options { expected_scans: vec![SourceId::from("files")], ..options() };
    let life = Life::at(old_store(&disk), options, later);
    assert!(!life.snapshot().scanned);
    std::thread::sleep(TICKS);
    assert_eq!(sum(&life.snapshot(), "files", &silent), 0);
    let work = Fact::Activity { class: ActivityClass::Work, message: false };
    life.read(vec![event("files", "s", now().plus(4 * MINUTE), work)], 1, 2);
    life.scanned("files");
    life.until("the scan", |s| s.scanned);
    std::thread::sleep(TICKS);
    assert_eq!(sum(&life.end(), "files", &silent), 0);
}
