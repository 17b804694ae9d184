//! What must hold for any bytes from outside or from a damaged state file: no panic, bounded memory. One body per
//! fuzz target; `tests/hostile.rs` runs the same bodies on mutated recordings.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Event, Name, Reducer, SourceId, Timestamp};
use agent_session_exporter::ingest::{Kernel, Options as Tailing, Outcome, Position, Tail, Wake, file_name};
use agent_session_exporter::session::snapshot::{Snapshot, Tree};
use agent_session_exporter::session::{Facts, Session};
use agent_session_exporter::sources::claude_code::Claude;
use agent_session_exporter::sources::codex::Codex;
use agent_session_exporter::sources::files::objects::{self, Piece};
use agent_session_exporter::sources::files::{Opening, PEEK};
use agent_session_exporter::sources::live;
use agent_session_exporter::sources::push::{Admission, Decoder, Options};
use agent_session_exporter::sources::{Decode, LIST, Record};
use agent_session_exporter::store::dedup::Known;
use agent_session_exporter::store::journal;
use agent_session_exporter::store::sessions::Sessions;
use agent_session_exporter::telemetry::Telemetry;
use serde::de::IgnoredAny;

/// Most a decoder may keep between two lines.
const MAX_CHECKPOINT: usize = 64 * 1024;
/// Most an event may take in the journal.
const MAX_EVENT: usize = 8_000;
/// Most events of one line: what the line lists, and what every line may bring.
const MAX_EVENTS: usize = 64;

static REDUCER: LazyLock<Arc<Reducer>> =
    LazyLock::new(|| Arc::new(Reducer::new([5; 16], Runners::default())));
static TELEMETRY: LazyLock<Arc<Telemetry>> = LazyLock::new(|| Arc::new(Telemetry::new()));

/// The moment at which everything is read.
pub const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn codex() -> Codex {
    Codex::new(SourceId::from("codex"), REDUCER.clone())
}

fn decoder() -> Decoder {
    Decoder::new(REDUCER.clone(), TELEMETRY.clone(), Arc::new(Admission::default()), &Options::default())
}

fn small(event: &Event) {
    let bytes = postcard::to_allocvec(event).expect("events always serialise");
    assert!(bytes.len() <= MAX_EVENT, "an event of {} bytes", bytes.len());
}

/// Events fold into a session that can be asked for its state, whatever they say.
fn fold(events: Vec<Event>) {
    let Some(first) = events.first() else { return };
    let mut session = Session::new(Facts::new(first.source.clone(), first.session.clone(), NOW));
    for event in events {
        session.apply(event, NOW);
    }
    ask(vec![Some(session.facts().clone())]);
}

fn ask(sessions: Vec<Option<Arc<Facts>>>) {
    let slots = sessions.len();
    let tree = Arc::new(Tree::of(&sessions));
    let snapshot = Snapshot { sessions, tree, ..Snapshot::default() };
    for slot in 0..slots {
        if let Some(rollup) = snapshot.rollup(slot, NOW) {
            let _ = snapshot.derive(&rollup);
        }
    }
}

/// A file of Codex, line by line.
pub fn codex_lines(bytes: &[u8]) {
    let mut decoder = codex();
    let mut all = Vec::new();
    for line in bytes.split(|b| *b == b'\n') {
        let before = all.len();
        let _ = decoder.decode(&Record { bytes: line, observed: NOW }, &mut all);
        assert!(all.len() - before <= MAX_EVENTS + line.len() / 8, "{} events of a line", all.len() - before);
        let _ = decoder.unknown_kinds();
    }
    all.iter().for_each(small);
    let checkpoint = decoder.checkpoint();
    assert!(checkpoint.len() <= MAX_CHECKPOINT, "a checkpoint of {} bytes", checkpoint.len());
    let again = Codex::restore(SourceId::from("codex"), REDUCER.clone(), &checkpoint);
    let again = again.expect("a checkpoint of our own can be restored");
    assert_eq!(again.session(), decoder.session());
    fold(all);
}

/// What a server sends, line by line, to every source that follows servers. A line behind a question mark answers the
/// oldest question that is open, one behind an exclamation mark is a loss of the connection.
pub fn server_records(bytes: &[u8]) {
    for live in LIST.iter().filter_map(|def| def.live) {
        let opening = live::Opening {
            source: SourceId::from(live.name),
            endpoint: Name::from("127.0.0.1:1"),
            base: "http://127.0.0.1:1".to_owned(),
            reducer: REDUCER.clone(),
        };
        let kept = follow((live.new)(&opening, None), bytes);
        if let Some(kept) = kept {
            assert!(kept.len() <= MAX_CHECKPOINT, "{}: a checkpoint of {} bytes", live.name, kept.len());
            follow((live.new)(&opening, Some(&kept)), bytes);
        }
        // Whatever lies in the state file is no reason to fall over.
        follow((live.new)(&opening, Some(bytes)), b"");
    }
}

fn follow(mut peer: Box<dyn live::Peer>, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut said = live::Said::default();
    let mut asks = VecDeque::new();
    let (mut all, mut now, mut kept) = (Vec::new(), NOW, None);
    peer.connected(now, &mut said);
    for line in bytes.split(|b| *b == b'\n') {
        let before = all.len() + said.events.len();
        match line.split_first() {
            Some((b'?', body)) => {
                if let Some(ask) = asks.pop_front() {
                    let answer = live::Answer { status: 200, body: body.to_vec(), next: None };
                    let _ = peer.answered(&ask, &Ok(answer), now, &mut said);
                }
            }
            Some((b'!', _)) => {
                asks.clear();
                peer.lost(now, &mut said);
                said.asks.clear();
                peer.connected(now, &mut said);
            }
            _ => {
                let _ = peer.record(&Record { bytes: line, observed: now }, &mut said);
            }
        }
        now = now.plus(500);
        peer.tick(now, &mut said);
        all.append(&mut said.events);
        let more = all.len() - before;
        assert!(more <= 4 * MAX_EVENTS + line.len() / 8, "{more} events of a record");
        asks.extend(said.asks.drain(..));
        assert!(said.unknown.iter().all(|kind| kind.len() <= line.len()));
        said.unknown.clear();
        kept = peer.changed().or(kept);
    }
    all.iter().for_each(small);
    fold(all);
    kept
}

/// A line that may hold several objects, or damage. Objects are whole, in order and never overlap; what is complete
/// has no damage; and two lines that are objects make, behind each other, the objects of both.
pub fn line_objects(bytes: &[u8]) {
    let read = |line: &[u8]| {
        let (mut objects, mut damage) = (Vec::new(), 0);
        objects::pieces(line, &mut |piece| match piece {
            Piece::Object(object) => {
                assert!(serde_json::from_slice::<IgnoredAny>(&object).is_ok());
                assert_eq!((object.first(), object.last()), (Some(&b'{'), Some(&b'}')));
                objects.push(object.into_owned());
            }
            Piece::Damage => damage += 1,
        });
        (objects, damage)
    };
    let (objects, damage) = read(bytes);
    assert!(damage <= objects.len() + 1, "damage is told once between two objects");
    if std::str::from_utf8(bytes).is_ok() {
        let mut rest = bytes;
        for object in &objects {
            let at = rest.windows(object.len()).position(|w| w == object).expect("objects stand in the line");
            rest = &rest[at + object.len()..];
        }
    }
    if objects::complete(bytes) {
        assert!(damage == 0 && !objects.is_empty());
        let (twice, damage) = read(&[bytes, bytes].concat());
        assert_eq!((twice, damage), ([objects.clone(), objects].concat(), 0));
    }
}

/// Lines below a folder, where an earlier reader was left, and where this one was.
fn read_lines(folder: &Path, from: Option<Position>) -> (Vec<Vec<u8>>, Option<Position>) {
    let tailing = Tailing {
        roots: vec![folder.to_owned()],
        accepts: |_| true,
        stream: file_name,
        max_age_ms: i64::MAX,
        hash: Arc::new(|bytes| REDUCER.hash(bytes)),
        complete: objects::complete,
        poll_only: true,
        kernel: Kernel::default(),
    };
    let mut tail = Tail::new(tailing, Arc::new(Wake::default()));
    let (mut lines, mut position) = (Vec::new(), None);
    tail.look(Duration::ZERO, NOW.as_millis());
    while let Some((handle, _)) = tail.next_file() {
        if position.is_none()
            && let Some(from) = from
        {
            assert!(tail.resume(handle, &from), "it is the same file");
        }
        let outcome = tail.read(handle, 64, &mut |line| {
            assert!(!line.bytes.is_empty() && !line.bytes.contains(&b'\n'));
            lines.push(line.bytes.to_vec());
            ControlFlow::Continue(())
        });
        assert!(matches!(outcome, Outcome::Slice(_)), "a file that only grows never starts again");
        position = tail.get(handle).map(|file| file.position);
    }
    (lines, position)
}

/// A file that is written in two pieces, cut anywhere (the first two bytes say where) and read by a run after each: the
/// same objects as at once.
pub fn file_lines(bytes: &[u8]) {
    let Some(([high, low], content)) = bytes.split_first_chunk() else { return };
    let cut = usize::from(u16::from_be_bytes([*high, *low])) % (content.len() + 1);
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let write = |content: &[u8]| {
        let file = File::options().append(true).create(true).open(folder.path().join("f"));
        file.and_then(|mut file| file.write_all(content)).expect("a file to write");
    };
    write(&content[..cut]);
    let (mut pieces, position) = read_lines(folder.path(), None);
    // Without an end, a last line that is not whole would be kept back.
    write(&[&content[cut..], b"\n"].concat());
    pieces.extend(read_lines(folder.path(), position).0);
    let (whole, end) = read_lines(folder.path(), None);
    assert_eq!(read_lines(folder.path(), end).0.len(), 0, "nothing is read twice");

    let objects = |lines: &[Vec<u8>]| {
        let (mut all, mut damage) = (Vec::new(), false);
        for line in lines {
            objects::pieces(line, &mut |piece| match piece {
                Piece::Object(object) => all.push(object.into_owned()),
                Piece::Damage => damage = true,
            });
        }
        (all, damage)
    };
    let (whole, damage) = objects(&whole);
    // How much of a damaged line is found may depend on where it was cut.
    if !damage {
        assert_eq!(objects(&pieces), (whole, false));
    }
}

/// As a file of Claude Code is opened.
pub fn claude_opening(head: &[u8]) -> Opening<'_> {
    Opening {
        source: SourceId::from("claude_code"),
        reducer: REDUCER.clone(),
        name: Some("named-by-file"),
        owners: Arc::default(),
        head: &head[..head.len().min(PEEK)],
    }
}

/// What a decoder of Claude Code keeps behind the last line.
pub fn claude_checkpoint(bytes: &[u8]) -> Vec<u8> {
    let mut decoder = Claude::new(&claude_opening(bytes));
    for line in bytes.split(|b| *b == b'\n') {
        let _ = decoder.decode(&Record { bytes: line, observed: NOW }, &mut Vec::new());
    }
    decoder.checkpoint()
}

/// A file of Claude Code, line by line.
pub fn claude_lines(bytes: &[u8]) {
    let opening = claude_opening(bytes);
    let mut decoder = Claude::new(&opening);
    let mut all = Vec::new();
    for line in bytes.split(|b| *b == b'\n') {
        let before = all.len();
        let _ = decoder.decode(&Record { bytes: line, observed: NOW }, &mut all);
        assert!(all.len() - before <= MAX_EVENTS + line.len() / 8, "{} events of a line", all.len() - before);
        let _ = decoder.unknown_kinds();
    }
    all.iter().for_each(small);
    let checkpoint = decoder.checkpoint();
    assert!(checkpoint.len() <= MAX_CHECKPOINT, "a checkpoint of {} bytes", checkpoint.len());
    let again = Claude::restore(&opening, &checkpoint).expect("a checkpoint of our own can be restored");
    assert_eq!(again.session(), decoder.session());
    fold(all);
}

/// One pushed item.
pub fn push_item(bytes: &[u8]) {
    if let Ok(event) = decoder().item(bytes, NOW) {
        small(&event);
        fold(vec![event]);
    }
}

/// One pushed CloudEvent.
pub fn push_cloud_event(bytes: &[u8]) {
    if let Ok(event) = decoder().cloud_event(bytes, NOW) {
        small(&event);
        fold(vec![event]);
    }
}

/// A journal blob of the state file. What can be read is written and read again without a change.
pub fn journal_read(bytes: &[u8]) {
    let Ok(events) = journal::read(bytes) else { return };
    let mut writer = journal::Writer::default();
    for (slot, event) in events.iter().enumerate() {
        writer.push(slot, event);
    }
    let again = journal::read(&writer.take()).expect("what was written can be read");
    assert_eq!(again.len(), events.len());
    fold(events);
}

/// Checkpoints of the state file: a decoder's, a session's row, a tombstone, a chunk of known ids.
pub fn checkpoint_restore(bytes: &[u8]) {
    if let Some(mut decoder) = Codex::restore(SourceId::from("codex"), REDUCER.clone(), bytes) {
        let line = br#"{"timestamp":"2026-11-29T15:12:58.774Z","type":"event_msg","payload":{"type":"task_started","turn_id":"t"}}"#;
        let mut out = Vec::new();
        let _ = decoder.decode(&Record { bytes: line, observed: NOW }, &mut out);
        fold(out);
    }
    if let Some(mut decoder) = Claude::restore(&claude_opening(&[]), bytes) {
        let line = br#"{"type":"assistant","sessionId":"s","uuid":"u","timestamp":"2026-11-29T15:12:58.774Z","message":{"id":"m","content":[]}}"#;
        let mut out = Vec::new();
        let _ = decoder.decode(&Record { bytes: line, observed: NOW }, &mut out);
        let _ = decoder.checkpoint();
        fold(out);
    }
    let mut sessions = Sessions::default();
    sessions.restore_tombstone(b"codex\0s".to_vec(), bytes);
    if sessions.restore(bytes, NOW) {
        ask(sessions.vector());
    }
    let mut known = Known::default();
    let source = SourceId::from("codex");
    if known.restore(b"codex\0", bytes) {
        known.insert(&source, 1, Some(NOW));
        assert!(!known.insert(&source, 1, Some(NOW)), "an id is known from then on");
        let _ = known.changes();
    }
}
