//! The bodies of the fuzz targets on mutated recordings, in every run of the tests.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "fuzz/bodies.rs"]
#[allow(unreachable_pub, reason = "the fuzz targets take the same file")]
mod bodies;

use std::path::Path;
use std::sync::LazyLock;

use agent_session_exporter::event::{Event, SCHEMA_JSON, SourceId};
use agent_session_exporter::sources::codex::Codex;
use agent_session_exporter::sources::{Decode as _, Record};
use agent_session_exporter::store::dedup::Known;
use agent_session_exporter::store::journal;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Recordings that are short enough to be decoded some hundred times.
static RECORDINGS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| short_ones("codex", 40_000));
static CLAUDE: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let mut all = short_ones("public/claude-code", 40_000);
    all.extend(short_ones("claude_code", 40_000));
    assert!(all.len() > 25, "{}", all.len());
    all
});

fn short_ones(folder: &str, below: usize) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "jsonl"));
    paths.sort();
    let read = paths.iter().map(|p| std::fs::read(p).unwrap());
    read.filter(|bytes| bytes.len() < below).collect()
}

fn events(recording: &[u8]) -> (Vec<Event>, Vec<u8>) {
    let reducer = agent_session_exporter::event::Reducer::new([5; 16], Default::default());
    let mut decoder = Codex::new(SourceId::from("codex"), reducer.into());
    let mut out = Vec::new();
    for line in recording.split(|b| *b == b'\n') {
        let _ = decoder.decode(&Record { bytes: line, observed: bodies::NOW }, &mut out);
    }
    (out, decoder.checkpoint())
}

/// Recordings of servers, as records alone: of each line the frame or event in it.
static SERVERS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for (folder, end) in [("openfox", ".ws.ndjson"), ("opencode", ".sse.ndjson"), ("gobby", ".ndjson")] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
        let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        paths.retain(|p| p.to_str().is_some_and(|p| p.ends_with(end)));
        paths.sort();
        for path in paths {
            let text = std::fs::read_to_string(path).unwrap();
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let records = lines.filter_map(|line| {
                let frame = ["frame", "event", "response"].iter().find_map(|k| line.get(*k))?;
                Some(if line.get("response").is_some() { format!("?{frame}") } else { frame.to_string() })
            });
            let text = records.collect::<Vec<_>>().join("\n");
            if text.len() < 60_000 {
                all.push(text.into_bytes());
            }
        }
    }
    assert!(all.len() > 20, "{}", all.len());
    all
});

/// Journal blobs as the store writes them.
static BLOBS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let blob = |recording: &Vec<u8>| {
        let mut writer = journal::Writer::default();
        for event in events(recording).0 {
            writer.push(0, &event);
        }
        writer.take()
    };
    RECORDINGS.iter().map(blob).collect()
});

/// Checkpoints of decoders, of sessions and of known ids.
static CHECKPOINTS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let mut all: Vec<_> = CLAUDE.iter().map(|bytes| bodies::claude_checkpoint(bytes)).collect();
    for recording in RECORDINGS.iter() {
        let (events, checkpoint) = events(recording);
        all.push(checkpoint);
        let mut sessions = agent_session_exporter::store::sessions::Sessions::default();
        let mut known = Known::default();
        for event in events {
            known.insert(&event.source, event.id.unwrap_or(7), event.time);
            if let Some(slot) = sessions.slot_for(&event, 0) {
                sessions.put(slot, event);
            }
        }
        sessions.fold(bodies::NOW, |_, _, _| {});
        all.extend(sessions.changes().0.into_iter().filter_map(|(_, row)| row));
        all.extend(known.changes().into_iter().filter_map(|(_, row)| row));
    }
    all
});

/// Pushed items: the schema's examples, plain and as CloudEvents.
static ITEMS: LazyLock<[Vec<Vec<u8>>; 2]> = LazyLock::new(|| {
    let schema: Value = serde_json::from_str(SCHEMA_JSON).unwrap();
    let examples = schema["examples"].as_array().unwrap();
    let cloud = |e: &Value| {
        let mut event = json!({"specversion": "1.0", "source": "/agents/my_bot", "subject": e["sessionId"],
            "id": "1", "type": e["type"], "time": "2026-01-01T00:00:00Z"});
        event["data"] = e["data"].clone();
        event.to_string().into_bytes()
    };
    [examples.iter().map(|e| e.to_string().into_bytes()).collect(), examples.iter().map(cloud).collect()]
});

/// One change of some bytes.
#[derive(Clone, Debug)]
enum Change {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Remove(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Repeat(prop::sample::Index, usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..12),
        prop::sample::select(vec![
            &b"null"[..],
            b"-1",
            b"1e308",
            b"18446744073709551616",
            b"\"\"",
            b"[]",
            b"{}",
            b"\n",
            b"\\ud800",
            b"\xff",
            b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"[[[[[[[[",
        ])
        .prop_map(<[u8]>::to_vec),
    ];
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(i, b)| Change::Flip(i, b)),
        1 => at().prop_map(Change::Cut),
        2 => (at(), 1usize..40).prop_map(|(i, n)| Change::Remove(i, n)),
        4 => (at(), piece).prop_map(|(i, p)| Change::Insert(i, p)),
        1 => (at(), 1usize..200, 1usize..40).prop_map(|(i, n, times)| Change::Repeat(i, n, times)),
    ]
}

/// Bytes of a corpus after some changes.
fn changed(corpus: &[Vec<u8>], pick: prop::sample::Index, changes: &[Change]) -> Vec<u8> {
    let mut bytes = corpus[pick.index(corpus.len())].clone();
    for change in changes {
        if bytes.is_empty() {
            break;
        }
        let len = bytes.len();
        match change {
            Change::Flip(at, with) => bytes[at.index(len)] ^= *with,
            Change::Cut(at) => bytes.truncate(at.index(len)),
            Change::Remove(at, n) => {
                let at = at.index(len);
                bytes.drain(at..(at + n).min(len));
            }
            Change::Insert(at, piece) => {
                let at = at.index(len);
                bytes.splice(at..at, piece.iter().copied());
            }
            Change::Repeat(at, n, times) => {
                let at = at.index(len);
                let piece = bytes[at..(at + n).min(len)].repeat(*times);
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(change(), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn codex_lines(pick in any::<prop::sample::Index>(), changes in changes()) {
        bodies::codex_lines(&changed(&RECORDINGS, pick, &changes));
    }

    #[test]
    fn line_objects(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        between in prop::sample::select(vec!["", " ", "\0", "\r", "x", "{\"", "\n"]),
        changes in changes(),
    ) {
        let line = picks.iter().map(|p| ITEMS[0][p.index(ITEMS[0].len())].clone()).collect::<Vec<_>>();
        bodies::line_objects(&changed(&[line.join(between.as_bytes())], picks[0], &changes));
    }

    #[test]
    fn claude_lines(pick in any::<prop::sample::Index>(), changes in changes()) {
        bodies::claude_lines(&changed(&CLAUDE, pick, &changes));
    }

    #[test]
    fn server_records(pick in any::<prop::sample::Index>(), changes in changes()) {
        bodies::server_records(&changed(&SERVERS, pick, &changes));
    }

    #[test]
    fn push_item(pick in any::<prop::sample::Index>(), changes in changes()) {
        bodies::push_item(&changed(&ITEMS[0], pick, &changes));
    }

    #[test]
    fn push_cloud_event(pick in any::<prop::sample::Index>(), changes in changes()) {
        bodies::push_cloud_event(&changed(&ITEMS[1], pick, &changes));
    }

    #[test]
    fn journal_read(pick in any::<prop::sample::Index>(), changes in changes()) {
        bodies::journal_read(&changed(&BLOBS, pick, &changes));
    }

    #[test]
    fn checkpoint_restore(pick in any::<prop::sample::Index>(), changes in changes()) {
        bodies::checkpoint_restore(&changed(&CHECKPOINTS, pick, &changes));
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        bodies::codex_lines(&bytes);
        bodies::line_objects(&bytes);
        bodies::claude_lines(&bytes);
        bodies::server_records(&bytes);
        bodies::push_item(&bytes);
        bodies::push_cloud_event(&bytes);
        bodies::journal_read(&bytes);
        bodies::checkpoint_restore(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn file_lines(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
        between in prop::sample::select(vec!["", " ", "\0", "\r\n", "\n"]),
        cut in any::<u16>(),
        changes in changes(),
    ) {
        let lines = picks.iter().map(|p| ITEMS[0][p.index(ITEMS[0].len())].clone()).collect::<Vec<_>>();
        let content = changed(&[lines.join(between.as_bytes())], picks[0], &changes);
        bodies::file_lines(&[&cut.to_be_bytes(), &content[..]].concat());
        let content = lines.join(between.as_bytes());
        bodies::file_lines(&[&cut.to_be_bytes(), &content[..]].concat());
    }
}

#[test]
fn a_number_at_the_end_of_its_range_is_a_damaged_chunk() {
    // A chunk's number, no time, no ids, as the store writes them.
    let chunk = [&[0xff; 9][..], &[1, 0, 0]].concat();
    assert!(!Known::default().restore(b"codex\0", &chunk));
}
