//! Exemplars of the running store: the ids are those of spans that wait to be sent.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::{
    CallEnd, CallOutcome, CallStart, Commands, Fact, Id, Name, SourceId, ToolClass, Trigger, TurnOutcome,
};
use agent_session_exporter::session::Observation;
use agent_session_exporter::session::exemplars::{Exemplar, Exemplars};
use agent_session_exporter::spans::{Outgoing, Signal, Span};
use agent_session_exporter::store::Options;
use agent_session_exporter::store::spool::Keep;

use crate::common::disk::Disk;
use crate::common::owner::{Life, event, now, open};
use crate::stand::{keeping, spans};

const KEEP: Keep = Keep { spans: true, logs: true, max_items: 1_000, max_bytes: 1 << 20 };

/// What a life in which a turn of 70 s with a call of 40 s is over shows at its end, and the spans that waited before that.
fn lived(keep: Keep) -> (Exemplars, Vec<Span>) {
    lived_until(keep, |_, _| {})
}

/// The same with something between: told what is shown, and what waits.
fn lived_until(keep: Keep, then: impl FnOnce(&Life, &[Span])) -> (Exemplars, Vec<Span>) {
    let opened = open(&Disk::default());
    let start = now().plus(1_000);
    let hand: &'static AtomicI64 = Box::leak(Box::new(AtomicI64::new(start.as_millis())));
    let life = Life::at(opened, Options { traced: true, ..keeping(keep) }, Clock::held(hand));
    let call = || Id::from("c");
    let start_of_call = CallStart {
        call: call(),
        tool: Name::from("bash"),
        class: ToolClass::Shell,
        key: None,
        target: None,
        read: None,
        commands: Commands(0),
        background: false,
        asks: None,
        nested: false,
    };
    let end_of_call = CallEnd {
        call: call(),
        outcome: CallOutcome::Ok,
        exit_code: None,
        diff_lines: None,
        error: None,
        output: None,
        read: None,
    };
    let end = Fact::TurnEnded {
        outcome: TurnOutcome::Completed,
        error: None,
        reset: None,
        denied: false,
        result_known: true,
    };
    let facts = [
        (0, Fact::TurnStarted { trigger: Trigger::Person }),
        (10_000, Fact::ToolStarted(start_of_call)),
        (50_000, Fact::ToolEnded(end_of_call)),
        (70_000, end),
    ];
    for (ms, fact) in facts {
        hand.store(start.plus(ms).as_millis(), Ordering::SeqCst);
        let mut event = event("mine", "s", start.plus(ms), fact);
        event.request = Some(Id::from("r"));
        life.pushed(vec![event]).unwrap();
    }
    hand.store(start.plus(90_000).as_millis(), Ordering::SeqCst);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let state = life.store.spool.state();
    if keep.spans {
        crate::stand::until("spans wait", || state.borrow().items >= 2);
    } else {
        life.until("the store has looked", |s| s.sessions.iter().flatten().any(|f| f.turn.is_none()));
        std::thread::sleep(Duration::from_secs(2));
    }
    let waiting = runtime.block_on(life.store.spool.oldest(Signal::Traces, None, 10, usize::MAX)).unwrap();
    let spans = waiting.items.into_iter().filter_map(|w| match w.item {
        Some(Outgoing::Span(span)) => Some(span),
        _ => None,
    });
    let spans: Vec<Span> = spans.collect();
    then(&life, &spans);
    let shown = life.end().exemplars.clone();
    ((*shown).clone(), spans)
}

fn of(exemplars: &Exemplars, what: Observation) -> Vec<Exemplar> {
    let newest = exemplars.of(&(SourceId::from("mine"), what));
    newest.into_iter().flatten().copied().flatten().collect()
}

fn shown(exemplars: &Exemplars) -> [usize; 2] {
    [Observation::Turn(TurnOutcome::Completed), Observation::Call(ToolClass::Shell)]
        .map(|what| of(exemplars, what).len())
}

fn every(exemplars: &Exemplars) -> Vec<Exemplar> {
    let mut all = of(exemplars, Observation::Turn(TurnOutcome::Completed));
    all.extend(of(exemplars, Observation::Call(ToolClass::Shell)));
    all
}

#[test]
fn spans_that_wait_to_be_sent_are_examples_of_the_histograms() {
    let (exemplars, spans) = lived(KEEP);
    assert_eq!(spans.len(), 2);
    for (what, name, ms) in [
        (Observation::Turn(TurnOutcome::Completed), "invoke_agent mine", 70_000),
        (Observation::Call(ToolClass::Shell), "execute_tool bash", 40_000),
    ] {
        let span = spans.iter().find(|s| s.name == name).unwrap();
        let (trace, id) = (span.context.trace.0, span.context.span.0);
        assert_eq!(of(&exemplars, what), [Exemplar { trace, span: id, ms, at: span.end }], "{name}");
    }
}

#[test]
fn of_spans_that_are_not_sent_nothing_is_shown() {
    let (exemplars, spans) = lived(Keep { spans: false, ..KEEP });
    assert_eq!((exemplars, spans), (Exemplars::default(), Vec::new()));
}

#[test]
fn what_the_bound_of_the_spool_drops_is_no_example_any_more() {
    // Records would take the room as well.
    let keep = Keep { max_items: 2, logs: false, ..KEEP };
    let put = |life: &Life, _: &[Span]| {
        life.until("both are shown", |s| shown(&s.exemplars) == [1, 1]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(life.store.spool.put(spans(0..1)));
    };
    let (exemplars, spans) = lived_until(keep, put);
    let oldest = spans[0].context.span.0;
    assert_eq!(shown(&exemplars).iter().sum::<usize>(), 1);
    assert!(every(&exemplars).iter().all(|e| e.span != oldest), "the one that was dropped is still named");
}

#[test]
fn what_the_collector_did_not_take_is_no_example_any_more() {
    let refuse = |life: &Life, spans: &[Span]| {
        life.until("both are shown", |s| shown(&s.exemplars) == [1, 1]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(life.store.spool.lost(vec![0], vec![spans[0].context.span.0]));
    };
    let (exemplars, spans) = lived_until(KEEP, refuse);
    let left: Vec<[u8; 8]> = every(&exemplars).iter().map(|e| e.span).collect();
    assert_eq!(left, [spans[1].context.span.0]);
}
