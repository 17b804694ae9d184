//! Every recording of the registry, replayed at the times it was made, seen once a second.

use std::collections::BTreeMap;

use agent_session_exporter::event::{ActionKind, Fact, Writer};

use super::stand::{Stand, ms, recording, recordings};

/// A recording being replayed: its changes are made when their time has come.
struct Replay {
    stand: Stand,
    left: Vec<(i64, i32, Option<String>)>,
    starts: BTreeMap<i32, u64>,
    next_look: i64,
    /// What transcripts tell of turns, newest first: session, moment, whether it begins.
    turns: Vec<(String, i64, bool)>,
}

/// Turns of a transcript: when each begins and ends.
type Turns = &'static [(i64, Option<i64>)];

impl Replay {
    fn of(name: &str) -> Self {
        let mut left = recording(name);
        left.reverse();
        let next_look = left.last().unwrap().0;
        Self { stand: Stand::new(), left, starts: BTreeMap::new(), next_look, turns: Vec::new() }
    }

    /// Goes on to a moment, with a look each second on the way; the last one is up to a second old then.
    fn until(&mut self, at: i64) -> &mut Self {
        while self.next_look <= at {
            while let Some((_, pid, content)) = self.left.pop_if(|(t, ..)| *t <= self.next_look) {
                self.change(pid, content);
            }
            self.read_turns(self.next_look);
            self.stand.look_at(self.next_look);
            self.next_look += 1000;
        }
        self.read_turns(at);
        self.stand.now = ms(at);
        self
    }

    fn change(&mut self, pid: i32, content: Option<String>) {
        let Some(content) = content else {
            self.stand.remove(pid);
            return self.stand.kill(pid);
        };
        let value: serde_json::Value = serde_json::from_str(&content).unwrap();
        let start = value["procStart"].as_str().unwrap().parse().unwrap();
        self.starts.insert(pid, start);
        self.stand.live(pid, start);
        self.stand.write(pid, &content);
    }

    fn read_turns(&mut self, until: i64) {
        while let Some((session, at, begins)) = self.turns.pop_if(|(_, at, _)| *at <= until) {
            self.stand.turn(&session, at, begins);
        }
    }

    /// Has these turns told when their time has come.
    fn turns(&mut self, session: &str, turns: Turns) {
        for (begin, end) in turns.iter().rev() {
            self.turns.extend(end.map(|end| (session.to_owned(), end, false)));
            self.turns.push((session.to_owned(), *begin, true));
        }
    }

    fn finish(&mut self) -> &mut Self {
        let last = self.left.first().map_or(self.next_look, |(t, ..)| *t);
        self.until(last + 3000)
    }
}

#[test]
fn a_person_who_is_asked_is_told_with_the_reason_for_as_long_as_it_lasts() {
    use ActionKind::{Other, Permission, Question};
    // Recording, its session, the turns of its transcript, and what is asked: kind, from, until.
    type Case = (&'static str, &'static str, Turns, &'static [(ActionKind, i64, i64)]);
    let cases: &[Case] = &[
        (
            "perm-manual",
            "a2a5566f",
            &[(1_795_966_184_810, Some(1_795_966_241_340)), (1_795_966_309_915, Some(1_795_966_310_139))],
            &[
                (Permission, 1_795_966_185_891, 1_795_966_198_019),
                (Permission, 1_795_966_198_683, 1_795_966_241_109),
            ],
        ),
        (
            "ask-question",
            "f605cc5d",
            &[(1_795_966_362_150, Some(1_795_966_372_490))],
            &[(Question, 1_795_966_362_813, 1_795_966_372_109)],
        ),
        (
            "plan-approval",
            "09d120ab",
            &[(1_795_966_562_700, Some(1_795_966_571_480))],
            &[(Permission, 1_795_966_563_799, 1_795_966_570_758)],
        ),
        (
            "perm-auto-mode",
            "e0d34adb",
            &[(1_795_966_070_050, Some(1_795_966_164_100))],
            &[
                (Other, 1_795_966_072_221, 1_795_966_122_056),
                (Permission, 1_795_966_122_056, 1_795_966_164_117),
            ],
        ),
        (
            "perm-reject-interrupt",
            "deb107f8",
            &[(1_795_966_470_400, Some(1_795_966_473_000))],
            &[(Permission, 1_795_966_470_832, 1_795_966_473_005)],
        ),
    ];
    for (name, begin, turns, asked) in cases {
        let mut replay = Replay::of(name);
        let value: serde_json::Value =
            serde_json::from_str(replay.left.last().unwrap().2.as_ref().unwrap()).unwrap();
        let session = value["sessionId"].as_str().unwrap().to_owned();
        assert!(session.starts_with(begin), "{name}");
        let first = replay.next_look;
        replay.until(first + 2500);
        assert_eq!(replay.stand.state(&session), "queued/starting", "{name}");
        replay.turns(&session, turns);
        let mut at = first + 3000;
        let end = replay.left[0].0;
        while at < end {
            at += 500;
            replay.until(at);
            let derived = replay.stand.derived(&session);
            let waits = derived.state.as_str() == "waiting_for_user";
            // Seen a second later at most.
            let open = asked.iter().find(|(_, from, until)| *from <= at && at < *until);
            let (settled, soon) = (
                open.is_some_and(|(_, from, _)| at - from > 1100),
                asked.iter().any(|(_, from, until)| (0..=1100).contains(&(at - from.min(until))))
                    || asked.iter().any(|(.., until)| (0..=1100).contains(&(at - until))),
            );
            if settled {
                let (kind, from, _) = open.unwrap();
                let reason = derived.reason.as_str();
                assert!(waits, "{name} at {at}: {}", replay.stand.state(&session));
                assert_eq!((reason, derived.since), (kind.as_str(), ms(*from)), "{name} at {at}");
                assert_eq!(replay.stand.facts(&session).actions.len(), 1, "{name} at {at}");
            } else if !soon {
                assert!(!waits, "{name} at {at}");
                assert!(replay.stand.facts(&session).actions.is_empty(), "{name} at {at}");
            }
        }
        replay.finish();
        let all: Vec<_> = asked.iter().map(|(kind, from, _)| (*kind, *from)).collect();
        assert_eq!(replay.stand.asked(&session), all, "{name}");
        assert_eq!(replay.stand.writers(&session), [Writer::Alive, Writer::Left], "{name}");
        assert_eq!(replay.stand.state(&session), "completed/turn_complete", "{name}");
        let facts = replay.stand.facts(&session);
        assert_eq!(facts.info.interactive, Some(true), "{name}");
        assert_eq!(facts.project.as_ref().unwrap().as_str(), "project", "{name}");
        assert_eq!(facts.info.version.as_ref().unwrap().as_str(), "2.1.332", "{name}");
    }
}

#[test]
fn a_process_that_was_killed_is_gone_at_the_next_look() {
    for (name, pid, session, start) in [
        ("kill9", 16982, "33bfc12b-edca-4323-8d66-d9badb69fc42", 1_795_966_174_721),
        ("kill9-tui", 31977, "81f316a9-d50e-4b5e-9dc2-70a7845fe238", 1_795_966_522_691),
        ("kill9-subagent", 11759, "", 1_795_966_810_500),
        ("api-401", 18231, "", 1_795_966_191_600),
    ] {
        let mut replay = Replay::of(name);
        let value: serde_json::Value = serde_json::from_str(replay.left[0].2.as_ref().unwrap()).unwrap();
        let known = value["sessionId"].as_str().unwrap();
        assert!(session.is_empty() || session == known);
        let session = known.to_owned();
        replay.until(start);
        assert_eq!(replay.stand.state(&session), "queued/starting", "{name}");
        replay.stand.turn(&session, start, true);
        replay.until(start + 9000);
        assert_eq!(replay.stand.state(&session), "running/working", "{name}");
        replay.stand.kill(pid);
        replay.until(start + 10_100);
        assert_eq!(replay.stand.state(&session), "failed/process_gone", "{name}");
        assert!(replay.stand.derived(&session).since >= ms(start + 9000), "{name}");
        // Said once, and for good.
        replay.until(start + 20_000);
        replay.stand.restart();
        replay.until(start + 30_000);
        assert_eq!(replay.stand.writers(&session), [Writer::Alive, Writer::Gone], "{name}");
        // Swept away later by another one.
        replay.stand.remove(pid);
        replay.until(start + 40_000);
        assert_eq!(replay.stand.writers(&session), [Writer::Alive, Writer::Gone], "{name}");
    }
}

#[test]
fn every_process_that_removed_its_file_left_in_order() {
    let all = recordings();
    assert!(all.len() >= 30, "the recordings were not found");
    for name in all {
        let mut replay = Replay::of(&name);
        let ends = replay.left[0].2.is_none();
        replay.finish();
        let mut last = BTreeMap::new();
        let mut deleted = Vec::new();
        for event in &replay.stand.events {
            match event.fact {
                Fact::Writer(writer) => drop(last.insert(event.session.clone(), writer)),
                Fact::SessionDeleted => deleted.push(event.session.clone()),
                _ => {}
            }
            let age = event.observed.since(event.time.unwrap());
            assert!(age >= 0, "{name}: {event:?}");
            // What was written last is read before.
            assert!(age >= 1000 || event.fact != Fact::Writer(Writer::Left), "{name}: {event:?}");
        }
        let expected = if ends { Writer::Left } else { Writer::Alive };
        last.retain(|session, _| !deleted.contains(session));
        assert!(!last.is_empty() && last.values().all(|w| *w == expected), "{name}: {last:?}");
        assert!(replay.stand.facts(last.keys().next().unwrap().as_str()).actions.is_empty(), "{name}");
    }
}

#[test]
fn leaving_cancels_the_open_turn_and_no_other() {
    let mut told = Vec::new();
    for (name, session, turn) in [
        ("sigterm-tool", "c1e506b2", (1_795_966_163_950, None)),
        ("edit-ok", "3af55934", (1_795_966_064_800, Some(1_795_966_064_900))),
    ] {
        let mut replay = Replay::of(name);
        let value: serde_json::Value =
            serde_json::from_str(replay.left.last().unwrap().2.as_ref().unwrap()).unwrap();
        let id = value["sessionId"].as_str().unwrap().to_owned();
        assert!(id.starts_with(session));
        let removed = replay.left[0].0;
        replay.until(removed);
        replay.stand.turn(&id, turn.0, true);
        assert_eq!(replay.stand.state(&id), "running/working");
        assert_eq!(replay.stand.facts(&id).info.interactive, Some(false));
        // The end is read after the file was seen to be missing.
        replay.until(removed + 1000);
        if let Some(end) = turn.1 {
            replay.stand.turn(&id, end, false);
        }
        replay.until(removed + 3000);
        assert_eq!(replay.stand.writers(&id), [Writer::Alive, Writer::Left]);
        told.push(replay.stand.state(&id));
    }
    assert_eq!(told, ["cancelled/by_user", "completed/turn_complete"]);
}

#[test]
fn one_process_can_have_two_sessions_one_after_the_other() {
    let mut replay = Replay::of("compact-clear");
    let (first, second) = ("bf52e328", "1b293a67");
    let full = |replay: &Replay, begin: &str| {
        let found = replay.stand.events.iter().find(|e| e.session.as_str().starts_with(begin));
        found.map(|e| e.session.as_str().to_owned())
    };
    let cleared = 1_795_966_561_247;
    replay.until(cleared - 1000);
    let one = full(&replay, first).unwrap();
    assert_eq!(full(&replay, second), None);
    replay.turns(&one, &[(1_795_966_552_200, Some(1_795_966_552_750))]);
    replay.until(cleared + 3000);
    let two = full(&replay, second).unwrap();
    assert_eq!(replay.stand.writers(&one), [Writer::Alive, Writer::Left]);
    let (_, left) = replay.stand.facts(&one).writer.unwrap();
    assert!((cleared..cleared + 1000).contains(&left.as_millis()), "{left}");
    assert_eq!(replay.stand.state(&one), "completed/turn_complete");
    assert_eq!(replay.stand.writers(&two), [Writer::Alive]);
    assert_eq!(replay.stand.state(&two), "queued/starting");
    assert!(replay.stand.facts(&two).queued_at.unwrap() >= ms(cleared), "not when its process began");
    replay.finish();
    assert_eq!(replay.stand.writers(&two), [Writer::Alive, Writer::Left]);
    assert_eq!(replay.stand.writers(&one), [Writer::Alive, Writer::Left]);
}

#[test]
fn a_session_goes_on_in_other_processes_and_a_name_for_a_moment_is_none() {
    // Looked at whenever the file changes, so that the name of a tenth of a second is seen.
    let mut replay = Replay::of("resume-fork");
    while let Some((at, pid, content)) = replay.left.pop() {
        replay.change(pid, content);
        replay.stand.look_at(at);
    }
    let last = replay.stand.now.as_millis();
    for seconds in 1..4 {
        replay.stand.look_at(last + seconds * 1000);
    }
    let resumed = "424ea170-5b98-4a7e-946b-29c506995644";
    // It was resumed within a second: nobody saw it without a process.
    assert_eq!(replay.stand.writers(resumed).first(), Some(&Writer::Alive));
    assert_eq!(replay.stand.writers(resumed).last(), Some(&Writer::Left));
    let name = replay.stand.events.iter().find(|e| e.session.as_str().starts_with("452280ed")).unwrap();
    let session = name.session.as_str().to_owned();
    assert!(replay.stand.facts(&session).deleted_at.is_some());
    assert!(!replay.stand.facts(&session).counted, "no session was started");
    assert_eq!(replay.stand.state(&session), "cancelled/deleted");
}
