//! The order of the house, read from the sources: which room may import which, and the rules of the pen that no lint knows.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::path::{Path, PathBuf};

/// Rooms and what they may import from this crate; the longest matching beginning of a path decides. A room may
/// always import itself, but for single sources.
const ROOMS: &[(&str, &[&str])] = &[
    ("event", &[]),
    ("clock", &["event"]),
    ("telemetry", &[]),
    ("session", &["event"]),
    ("spans", &["event", "session"]),
    ("store", &["event", "session", "spans", "telemetry", "clock"]),
    // Of the store it needs the handle of the spool.
    ("otlp", &["event", "spans", "store", "telemetry", "clock"]),
    // Metrics are a view that is sent.
    ("otlp/metrics", &["event", "session", "spans", "telemetry", "clock", "views"]),
    ("ingest", &["clock", "telemetry"]),
    // Decoders see no clock. What hands them their records does, because it says when it read them.
    ("sources", &["event", "ingest", "telemetry"]),
    ("sources/mod.rs", &["event", "ingest", "telemetry", "clock"]),
    ("sources/files", &["event", "ingest", "telemetry", "clock"]),
    ("sources/live", &["event", "ingest", "telemetry", "clock"]),
    ("sources/push/mod.rs", &["event", "ingest", "telemetry", "clock"]),
    ("sources/spec/run.rs", &["event", "ingest", "telemetry", "clock"]),
    // Views read facts and ask for states; the words of both are those of events.
    ("views", &["event", "session", "telemetry", "clock"]),
    // It has nothing to do with sessions: alerts come in over HTTP, and go out over D-Bus.
    ("notify", &["event"]),
    ("config", &["sources", "otlp"]),
    ("docs", &["views", "sources", "config"]),
    ("cli", &["config", "app", "docs"]),
    ("app", EVERY_ROOM),
    ("lib.rs", &[]),
    ("main.rs", &[]),
];
const EVERY_ROOM: &[&str] = &[
    "event",
    "clock",
    "telemetry",
    "session",
    "store",
    "ingest",
    "sources",
    "views",
    "notify",
    "spans",
    "otlp",
    "config",
    "docs",
];
/// What sources have in common; the rest of the room is one source each.
const SHARED: &[&str] = &["files", "live", "shape", "walk", "arguments", "orchestrator", "recorded"];
/// Parts of a room that some other room may not touch although it may import the rest.
const CLOSED: &[(&str, &str)] = &[
    ("views", "session::apply"),
    ("views", "session::window"),
    ("otlp", "store::db"),
    ("otlp", "store::owner"),
    ("otlp", "store::sessions"),
];
/// Crates from outside and the only places that may name them.
const GUESTS: &[(&str, &[&str])] = &[
    ("redb", &["store"]),
    ("clap", &["cli"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("anyhow", &["cli", "main.rs", "app"]),
    ("toml", &["config"]),
    ("prometheus", &["telemetry", "views", "otlp/metrics"]),
    ("axum", &["views", "sources/push", "notify", "app"]),
    ("notify", &["ingest"]),
    ("zbus", &["notify"]),
    ("rustix", &["ingest", "sources/claude_code/registry"]),
    ("reqwest", &["ingest", "otlp"]),
    ("tokio_tungstenite", &["ingest"]),
    ("rustls_platform_verifier", &["ingest", "otlp"]),
    ("opentelemetry", &["otlp"]),
    ("opentelemetry_proto", &["otlp"]),
    ("opentelemetry_sdk", &["otlp"]),
    ("prost", &["otlp"]),
    ("tracing_opentelemetry", &["otlp"]),
    ("tonic", &["otlp"]),
    ("tonic_types", &["otlp"]),
    ("tower", &["otlp"]),
    ("tokio", &["store", "ingest", "otlp", "sources", "views", "notify", "app"]),
];
/// Code lines a file may have before its tests.
const MAX_LINES: usize = 700;
/// Files that may be longer, up to this, and why.
const LONG: &[(&str, usize, &str)] = &[];
/// What may not stand outside tests, and why.
const BANNED: &[(&str, &str)] = &[
    (".unwrap()", "use expect with the invariant, or handle it"),
    ("todo!(", "finish it"),
    ("unimplemented!(", "finish it"),
    ("dbg!(", "remove it"),
    ("#[ignore", "a test that does not run is none"),
];

/// A source file: path below src, all lines, and the code before the tests without comments.
struct File {
    path: String,
    text: String,
    code: Vec<(usize, String)>,
    /// Lines before the tests.
    lines: usize,
}

// === impl File ===

impl File {
    fn new(path: String, text: String) -> Self {
        // A file of tests inside src has no code of the product.
        let only_tests = path.ends_with("tests.rs") || path.contains("/tests/");
        let lines = if only_tests { 0 } else { text.lines().take_while(|l| *l != "#[cfg(test)]").count() };
        let code =
            text.lines().take(lines).enumerate().map(|(n, l)| (n + 1, uncommented(l).to_owned())).collect();
        Self { path, text, code, lines }
    }

    fn room(&self) -> &str {
        self.path.split(['/', '.']).next().unwrap_or_default()
    }

    fn is_in(&self, place: &str) -> bool {
        self.path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.']))
    }

    /// Breaches of the order, as `path:line: what`.
    fn breaches(&self) -> Vec<String> {
        let mut out = Vec::new();
        let mut say = |line: usize, what: String| out.push(format!("src/{}:{line}: {what}", self.path));
        if !self.text.starts_with("//! ") {
            say(1, "no header that says what belongs here".to_owned());
        }
        let excuse = LONG.iter().find(|(path, ..)| *path == self.path);
        let most = excuse.map_or(MAX_LINES, |(_, most, _)| *most);
        if self.lines > most {
            say(self.lines, format!("longer than {most} lines"));
        }
        let allowed =
            ROOMS.iter().filter(|(place, _)| self.is_in(place)).max_by_key(|(place, _)| place.len());
        let Some((_, allowed)) = allowed else {
            say(1, "belongs to no room of tests/house.rs".to_owned());
            return out;
        };
        for (n, line) in &self.code {
            if line.contains("use crate::{") {
                say(*n, "one room per use line".to_owned());
            }
            for path in named(line, "crate") {
                let room = path.split("::").next().unwrap_or_default();
                if room != self.room() && !allowed.contains(&room) {
                    say(*n, format!("{} may not import {room}", self.room()));
                }
                for (_, closed) in CLOSED.iter().filter(|(r, _)| *r == self.room()) {
                    if path == *closed || path.starts_with(&format!("{closed}::")) {
                        say(*n, format!("{} may not import {closed}", self.room()));
                    }
                }
                if let Some(other) = path.strip_prefix("sources::").and_then(|p| self.other_source(p)) {
                    say(*n, format!("a source may not import another ({other})"));
                }
            }
            for (guest, places) in GUESTS {
                if named(line, guest).next().is_some() && !places.iter().any(|p| self.is_in(p)) {
                    say(*n, format!("{guest} belongs to {}", places.join(", ")));
                }
            }
            for (banned, why) in BANNED.iter().filter(|(banned, _)| line.contains(banned)) {
                say(*n, format!("{banned} outside tests: {why}"));
            }
        }
        out
    }

    /// The sibling that a path below `sources` names, where this file is one of them.
    fn other_source<'p>(&self, path: &'p str) -> Option<&'p str> {
        let own = self.path.strip_prefix("sources/")?.split(['/', '.']).next()?;
        let named = path.split("::").next()?;
        let is_module = named.starts_with(|c: char| c.is_ascii_lowercase());
        (own != "mod" && is_module && named != own && !SHARED.contains(&named)).then_some(named)
    }
}

/// Paths that a line names below this crate: `crate::event::Event` gives `event::Event`.
fn named<'a>(line: &'a str, krate: &'a str) -> impl Iterator<Item = &'a str> {
    line.match_indices(krate).filter_map(move |(i, _)| {
        let inside_word = line[..i].ends_with(|c: char| c.is_alphanumeric() || "_:.\"".contains(c));
        let rest = line[i + krate.len()..].strip_prefix("::")?;
        let end = rest.find(|c: char| !(c.is_alphanumeric() || "_:".contains(c))).unwrap_or(rest.len());
        (!inside_word).then(|| rest[..end].trim_end_matches(':'))
    })
}

/// A line without its comment; `//` inside a text stays.
fn uncommented(line: &str) -> &str {
    line.match_indices("//")
        .find(|(i, _)| line[..*i].matches('"').count().is_multiple_of(2))
        .map_or(line, |(i, _)| &line[..i])
}

fn read(folder: &Path, root: &Path, out: &mut Vec<File>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            read(&path, root, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
            out.push(File::new(name, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn the_order_of_the_house_is_kept() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    read(&src, &src, &mut files);
    assert!(files.len() > 10, "the sources were not found");
    let breaches: Vec<String> = files.iter().flat_map(File::breaches).collect();
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn breaches_are_seen() {
    let of = |path: &str, code: &str| {
        File::new(path.to_owned(), format!("//! Header.\n{code}\n")).breaches().len()
    };
    assert_eq!(of("event/mod.rs", "use crate::session::Facts;"), 1);
    assert_eq!(of("session/apply.rs", "fn f(x: &crate::telemetry::Telemetry) {}"), 1);
    assert_eq!(of("session/apply.rs", "use tokio::sync::mpsc;"), 1);
    assert_eq!(of("session/apply.rs", "use crate::{event::Event};"), 2, "grouped, and thus unreadable");
    assert_eq!(of("sources/codex.rs", "use crate::sources::push::Push;"), 1);
    assert_eq!(of("sources/codex.rs", "use crate::clock::Clock;"), 1);
    assert_eq!(of("views/http.rs", "use crate::session::apply::apply;"), 1);
    assert_eq!(of("views/http.rs", "let x = y.unwrap();"), 1);
    assert_eq!(of("attic/x.rs", ""), 1);
    assert_eq!(File::new("event/mod.rs".to_owned(), "use std::fmt;\n".to_owned()).breaches().len(), 1);
    assert_eq!(of("event/mod.rs", &"\n".repeat(MAX_LINES)), 1);
}

#[test]
fn what_is_allowed_is_left_alone() {
    let of = |path: &str, code: &str| File::new(path.to_owned(), format!("//! Header.\n{code}\n")).breaches();
    let none: Vec<String> = Vec::new();
    assert_eq!(of("event/mod.rs", "use crate::event::words::Word; // not crate::session"), none);
    assert_eq!(
        of("sources/codex/mod.rs", "use crate::sources::{Decode, Record};\nuse crate::sources::files::Feed;"),
        none
    );
    assert_eq!(of("sources/mod.rs", "use crate::clock::Clock;\nuse tokio::sync::mpsc;"), none);
    assert_eq!(of("views/prometheus.rs", "use crate::session::Snapshot;\nuse prometheus::Registry;"), none);
    assert_eq!(of("session/state.rs", "#[cfg(test)]\nmod tests { fn f() { x.unwrap() } }"), none);
    assert_eq!(of("store/tests.rs", "use crate::views::prometheus;"), none);
}
