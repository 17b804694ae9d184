//! Scenarios told by a server that speaks the real protocol, to the source as it runs, into a store: with a clock
//! moved by hand, and an allow list that fails the test on any other request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_session_exporter::session::{Facts, Snapshot};
use agent_session_exporter::sources::opencode::{DEF, LIVE};
use serde_json::json;

use super::common::follow::{Fold, Following, Stand, standing};
use super::common::peer::{Asked, Kind, Reply, Rules, Server};
use super::folded::{Folded, words};
use super::play::Play;
use super::recorded::{Line, connections, json_of, scenarios};
use super::world::World;

/// What may be asked at all.
fn allowed(asked: &Asked) -> bool {
    let path = asked.plain();
    if asked.method == "POST" {
        return path == "/sync/history" && asked.body != b"{}";
    }
    let known = [
        "/experimental/session",
        "/session",
        "/session/status",
        "/permission",
        "/question",
        "/api/session/active",
    ];
    let of_one = path.starts_with("/session/ses_") && path.ends_with("/message")
        || path.starts_with("/api/session/ses_")
            && ["/history", "/permission", "/question"].iter().any(|end| path.ends_with(end));
    asked.method == "GET" && (known.contains(&path) || of_one)
}

fn rules(world: &Arc<Mutex<World>>) -> Rules {
    let (world, live) = (world.clone(), world.clone());
    let may = move |asked: &Asked| allowed(asked) && live.lock().unwrap().is_open(&asked.path);
    Rules::new(Kind::Events("/global/event")).allow(may).answer(move |asked| {
        let query = String::from_utf8(asked.body.clone()).unwrap();
        let (status, body) = world.lock().unwrap().answer(&asked.path, Some(&query));
        Reply::json(status, body.to_string())
    })
}

/// A server and what it knows.
struct Stage {
    world: Arc<Mutex<World>>,
    server: Server,
    sent: u64,
}

impl Stage {
    fn new() -> Self {
        let world: Arc<Mutex<World>> = Arc::default();
        let server = Server::start(rules(&world));
        Self { world, server, sent: 0 }
    }

    fn tell(&mut self, run: &Following, lines: &[Line]) {
        self.tell_watched(run, lines, &mut |_| ());
    }

    /// The same, with a look after each moment.
    fn tell_watched(&mut self, run: &Following, lines: &[Line], look: &mut dyn FnMut(&Following)) {
        for (n, line) in lines.iter().enumerate() {
            run.move_to(line.at);
            self.world.lock().unwrap().take(&line.frame);
            self.server.send(&line.frame.to_string());
            self.sent += 1;
            run.until_records(self.sent, &self.server);
            if lines.get(n + 1).is_none_or(|next| next.at > line.at) {
                look(run);
            }
        }
    }

    /// All of it, its connections one after the other.
    fn play(&mut self, run: &Following, scenario: &str) {
        self.play_cut(run, scenario, usize::MAX, &mut |_| ());
    }

    /// The same, with the stream cut after every so many records, and a look after each moment.
    fn play_cut(&mut self, run: &Following, scenario: &str, every: usize, look: &mut dyn FnMut(&Following)) {
        for (i, lines) in connections(scenario).iter().enumerate() {
            if i > 0 && scenario == "server_restart" {
                self.server.down();
                run.until_up(&self.server, false);
                self.world.lock().unwrap().restart();
                run.move_to(lines[0].at);
                self.server.up();
            } else if i > 0 {
                // What is open now, nobody has said yet.
                self.world.lock().unwrap().named.clear();
                self.server.cut();
            }
            self.server.until_streams(1);
            run.until_up(&self.server, true);
            for (n, part) in lines.chunks(every).enumerate() {
                if n > 0 {
                    self.world.lock().unwrap().named.clear();
                    run.cut(&self.server);
                }
                self.tell_watched(run, part, look);
            }
            run.move_to(run.now().plus(2_000));
        }
        run.move_to(run.now().plus(5_000));
        if scenario == "v2_session" {
            self.world.lock().unwrap().interrupts();
            run.move_to(run.now().plus(45_000));
        }
        run.until_records(self.sent, &self.server);
        run.move_to(run.now().plus(5_000));
    }
}

fn stand(scenario: &str) -> Stand {
    Stand::new(&LIVE, DEF.capabilities, connections(scenario)[0][0].at)
}

/// State and numbers of each session.
fn told(snapshot: &Snapshot, now: agent_session_exporter::event::Timestamp) -> Vec<String> {
    let mut all: Vec<String> = snapshot
        .sessions
        .iter()
        .enumerate()
        .filter_map(|(slot, facts)| {
            let facts = facts.as_ref()?;
            let state = words(&snapshot.derive(&snapshot.rollup(slot, now)?));
            Some(format!("{} {state} {}", facts.session.as_str(), Folded::numbers(facts)))
        })
        .collect();
    all.sort();
    all
}

/// State and numbers of each session, without what only the stream tells; of a deleted one its state.
fn kept(snapshot: &Snapshot, now: agent_session_exporter::event::Timestamp) -> BTreeMap<String, String> {
    let one = |(slot, facts): (usize, &Option<Arc<Facts>>)| {
        let facts = facts.as_ref()?;
        let state = words(&snapshot.derive(&snapshot.rollup(slot, now)?));
        let high: Vec<_> =
            facts.progress.iter().filter(|p| p.high > 0).map(|p| (p.kind.as_str(), p.high)).collect();
        let (t, u) = (facts.turns, facts.usage);
        let turns = [t.started, t.completed, t.failed, t.cancelled];
        let tokens = [u.input, u.cache_read, u.cache_write, u.output];
        let numbers = format!("{turns:?} {} {tokens:?} {} {high:?}", facts.calls.total, facts.actions.len());
        let is_deleted = state == "cancelled/deleted";
        let told = if is_deleted { state } else { format!("{state} {numbers}") };
        Some((facts.session.as_str().to_owned(), told))
    };
    snapshot.sessions.iter().enumerate().filter_map(one).collect()
}

#[test]
fn every_scenario_cut_at_every_tenth_record_ends_as_it_does_whole() {
    for scenario in scenarios() {
        let alone = Play::whole(&scenario);
        let folded = Folded::of(alone.events.iter().map(|(_, event)| event));
        let mut stage = Stage::new();
        let mut stand = stand(&scenario).server(&stage.server);
        stand.longest_pause = Duration::from_millis(10);
        let run = stand.start();
        stage.play_cut(&run, &scenario, 10, &mut |_| ());
        let now = run.now();
        let snapshot = run.end();
        let wanted = kept(&folded.snapshot(), now);
        let mut got = kept(&snapshot, now);
        // One that never did anything is not missed.
        for (session, told) in wanted.iter().filter(|(_, told)| told.starts_with("queued/starting")) {
            got.entry(session.clone()).or_insert_with(|| told.clone());
        }
        assert_eq!(got, wanted, "{scenario}");
    }
}

#[test]
fn every_scenario_ends_behind_a_real_stream_as_it_does_alone() {
    for scenario in scenarios() {
        let alone = Play::whole(&scenario);
        let folded = Folded::of(alone.events.iter().map(|(_, event)| event));
        let mut stage = Stage::new();
        let stand = stand(&scenario).server(&stage.server);
        let run = stand.start();
        let mut said = alone.events.iter().peekable();
        let mut on_the_way = Fold::new(DEF.name, DEF.capabilities);
        stage.play_cut(&run, &scenario, usize::MAX, &mut |run| {
            while let Some((_, event)) = said.next_if(|(at, _)| *at <= run.now()) {
                on_the_way.take(event);
            }
            run.until_stands(&standing(&on_the_way.snapshot(), run.now()), &scenario);
        });
        let now = run.now();
        let snapshot = run.end();
        // Calls that were cut off are ended by the store, a few seconds after their turn: here it is none of them.
        let cut_off = if scenario == "server_restart" { " | tool_call 0+1" } else { "" };
        let got: Vec<String> = told(&snapshot, now).iter().map(|line| line.replace(cut_off, "")).collect();
        let wanted: Vec<String> =
            told(&folded.snapshot(), now).iter().map(|line| line.replace(cut_off, "")).collect();
        assert_eq!(got, wanted, "{scenario}");
    }
}

#[test]
fn a_server_with_a_password_is_asked_with_it() {
    // As recorded: nothing but the right name and password is let in.
    let recorded = json_of("auth.json");
    assert_eq!(recorded["no credentials"]["status"], 401);
    assert_eq!(recorded["basic opencode"]["status"], 200);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "open sesame\n").unwrap();
    let world: Arc<Mutex<World>> = Arc::default();
    // opencode:open sesame
    let login = |a: &Asked| a.header("authorization") == Some("Basic b3BlbmNvZGU6b3BlbiBzZXNhbWU=");
    let server = Server::start(rules(&world).login(login));
    let mut stage = Stage { world, server, sent: 0 };
    let mut without = stand("edit_task").server(&stage.server);
    let run = without.start();
    run.until_up(&stage.server, false);
    assert_eq!(run.end().sessions.len(), 0);
    without.configured.login.password_file = Some(file);
    let run = without.start();
    run.until_up(&stage.server, true);
    stage.play(&run, "edit_task");
    assert_eq!(run.end().sessions.len(), 1);
}

#[test]
fn of_two_servers_on_one_folder_only_one_tells() {
    let (mut a, b) = (Stage::new(), Stage::new());
    let stand = stand("two_servers").server(&a.server).server(&b.server);
    let run = stand.start();
    for stage in [&a, &b] {
        run.until_up(&stage.server, true);
    }
    let lines = &connections("two_servers")[0];
    let (first, second) = lines.split_at(lines.len() / 2);
    a.tell(&run, first);
    let mut shared = a.world.lock().unwrap().clone();
    shared.restart();
    *b.world.lock().unwrap() = shared;
    b.server.cut();
    b.server.until_streams(1);
    run.until_up(&b.server, true);
    a.tell(&run, second);
    run.move_to(run.now().plus(5_000));
    let now = run.now();
    let snapshot = run.end();
    let alone = Play::whole("two_servers");
    let folded = Folded::of(alone.events.iter().map(|(_, event)| event));
    let facts: Vec<_> = snapshot.sessions.iter().flatten().collect();
    assert_eq!(facts.len(), 1);
    assert_eq!(facts[0].info.endpoint.as_ref().unwrap().as_str(), a.server.endpoint());
    assert_eq!(told(&snapshot, now), told(&folded.snapshot(), now));
}

#[test]
fn servers_of_a_file_are_followed() {
    let (mut a, mut b) = (Stage::new(), Stage::new());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("servers.json");
    std::fs::write(
        &file,
        json!({ "servers": [{ "url": a.server.url() }, { "url": a.server.url() }] }).to_string(),
    )
    .unwrap();
    let mut stand = stand("edit_task");
    stand.configured.servers_file = Some(file.clone());
    let run = stand.start();
    run.until_up(&a.server, true);
    a.play(&run, "edit_task");
    std::fs::write(&file, json!([a.server.url(), b.server.url()]).to_string()).unwrap();
    run.until_up(&b.server, true);
    b.sent = a.sent;
    b.play(&run, "no_git");
    assert_eq!(a.server.opened(), 1);
    assert_eq!(run.end().sessions.len(), 2);
}

#[test]
fn a_restart_of_the_exporter_catches_up_by_the_history() {
    let mut stage = Stage::new();
    let stand = stand("todo_steps").server(&stage.server);
    let lines = &connections("todo_steps")[0];
    let third = lines.len() / 3;
    let run = stand.start();
    run.until_up(&stage.server, true);
    stage.tell(&run, &lines[..third]);
    run.end();
    for line in &lines[third..2 * third] {
        stage.world.lock().unwrap().take(&line.frame);
    }
    std::thread::sleep(Duration::from_millis(20));
    stage.sent = 0;
    let run = stand.start();
    run.jump_to(lines[2 * third].at);
    run.until_up(&stage.server, true);
    assert!(stage.server.asked().iter().any(|asked| asked.method == "POST"), "by what was kept");
    stage.tell(&run, &lines[2 * third..]);
    run.move_to(run.now().plus(5_000));
    let now = run.now();
    let snapshot = run.end();
    let alone = Play::whole("todo_steps");
    let folded = Folded::of(alone.events.iter().map(|(_, event)| event));
    assert_eq!(told(&snapshot, now), told(&folded.snapshot(), now));
}
