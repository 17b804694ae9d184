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
use crate::stand::keeping;

const KEEP: Keep = Keep { spans: true, logs: true, max_items: 1_000, max_bytes: 1 << 20 };

/// A life in which a turn of 70 s with a call of 40 s is over, and the spans that wait then.
fn lived(keep: Keep) -> (Exemplars, Vec<Span>) {
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
    let spans = spans.collect();
    let shown = life.end().exemplars.clone();
    ((*shown).clone(), spans)
}

fn of(exemplars: &Exemplars, what: Observation) -> Vec<Exemplar> {
    let newest = exemplars.of(&(SourceId::from("mine"), what));
    newest.into_iter().flatten().copied().flatten().collect()
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
