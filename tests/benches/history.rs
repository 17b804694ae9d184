//! Reading history: transcripts and rollouts made from recordings, in the page cache, once per line of the table on one
//! core: counting lines, serde_json skipping most fields, ccusage, our decoder alone, and our whole way into the store.
//! A rate is input by CPU time, of all threads where there are several.
//!
//! `AGENT_SESSION_EXPORTER_BENCH_MB` sets how much of each (400). ccusage's native binary comes from npm, into
//! `tools/ccusage` of the target folder.

#![allow(clippy::unwrap_used, reason = "a bench that fails says where")]

mod support;
#[path = "../common/transcripts/mod.rs"]
mod transcripts;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_session_exporter::clock::Clock;
use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Reducer, SourceId};
use agent_session_exporter::sources::files::{FileSource, Opening, Owners, PEEK};
use agent_session_exporter::sources::{LIST, Record, claude_code, codex};
use support::work::{setting, spent};
use support::{cpu, row, table};
use transcripts::{Agent, Made, Plan, make};

/// Mean size of a file, as on the disks of people who work with agents every day.
const FILE: u64 = 400 << 10;
const DAY: Duration = Duration::from_secs(86_400);

/// What is worth knowing of a record if one only adds up tokens.
#[derive(serde::Deserialize)]
struct Skim<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<&'a str>,
    #[serde(borrow)]
    timestamp: Option<&'a str>,
    #[serde(borrow)]
    message: Option<Message<'a>>,
    #[serde(borrow)]
    payload: Option<Payload<'a>>,
}

#[derive(serde::Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a str>,
    usage: Option<Usage>,
}

#[derive(serde::Deserialize)]
struct Payload<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<&'a str>,
    info: Option<Info>,
}

#[derive(serde::Deserialize)]
struct Info {
    last_token_usage: Option<Usage>,
}

#[derive(serde::Deserialize)]
struct Usage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

fn skim(line: &[u8]) -> u64 {
    let Ok(skim) = serde_json::from_slice::<Skim<'_>>(line) else { return 0 };
    let texts = [skim.kind, skim.timestamp, skim.message.as_ref().and_then(|m| m.id)];
    let kind = skim.payload.as_ref().and_then(|p| p.kind);
    let usage = skim.message.and_then(|m| m.usage);
    let usage = usage.or_else(|| skim.payload?.info?.last_token_usage);
    let tokens = usage.map_or(0, |u| u.input_tokens.unwrap_or(0) + u.output_tokens.unwrap_or(0));
    tokens + texts.into_iter().flatten().chain(kind).map(|t| t.len() as u64).sum::<u64>()
}

/// Reads every file whole; the buffer is kept.
fn each(made: &[Made], mut take: impl FnMut(&[u8])) {
    let mut buffer = Vec::new();
    for file in made {
        buffer.clear();
        File::open(&file.path).unwrap().read_to_end(&mut buffer).unwrap();
        take(&buffer);
    }
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = memchr::memchr_iter(b'\n', bytes);
    let mut from = 0;
    ends.map(move |end| &bytes[std::mem::replace(&mut from, end + 1)..end])
}

/// Our decoder as the runner uses it, without the runner. Returns events.
fn decode(source: &FileSource, made: &[Made]) -> u64 {
    let name = SourceId::from(source.name);
    let reducer = Arc::new(Reducer::new([3; 16], Runners::default()));
    let owners = Arc::new(Owners::default());
    let observed = Clock::system().now();
    let (mut events, mut out) = (0, Vec::new());
    let mut files = made.iter();
    each(made, |bytes| {
        let id = files.next().and_then(|made| (source.stream_id)(made.path.file_name()?));
        let opening = Opening {
            source: name.clone(),
            reducer: reducer.clone(),
            name: id.as_deref(),
            owners: owners.clone(),
            head: if source.peeks { &bytes[..bytes.len().min(PEEK)] } else { b"" },
        };
        let mut decoder = (source.new)(&opening);
        for bytes in lines(bytes) {
            // A damaged line costs what it costs.
            let _ = decoder.decode(&Record { bytes, observed }, &mut out);
            if out.len() >= 512 {
                events += out.len() as u64;
                out.clear();
            }
        }
        events += out.len() as u64;
        out.clear();
        std::hint::black_box(decoder.checkpoint());
    });
    events
}

/// Runner, owner, commits, until all is read and kept: CPU time of the process, and wall time.
fn whole(home: &Path, source: &str) -> (Duration, Duration) {
    let (before, started) = (spent("self").0, Instant::now());
    let running = support::start_reading(1000, Some(home), &[source]);
    running.scanned();
    let took = (spent("self").0 - before, started.elapsed());
    running.stop.send_replace(true);
    running.runtime.shutdown_background();
    took
}

#[expect(clippy::disallowed_methods, reason = "a rival is a program")]
fn run(program: &Path, arguments: &[&str], folder: &Path) -> Option<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).stderr(Stdio::null());
    let claude = ("CLAUDE_CONFIG_DIR", folder.join(".claude"));
    command.env("HOME", folder).envs([claude, ("CODEX_HOME", folder.join(".codex"))]);
    command.output().ok().filter(|o| o.status.success()).map(|o| o.stdout)
}

/// ccusage's native binary, from npm unless an earlier run brought it.
fn ccusage() -> Result<PathBuf, &'static str> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"));
    let folder = target.join("tools/ccusage");
    let binary = folder.join("package/bin/ccusage");
    if binary.exists() {
        return Ok(binary);
    }
    let cpu = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        _ => return Err("it is not built for this processor"),
    };
    std::fs::create_dir_all(&folder).map_err(|_| "the target folder cannot be written")?;
    // The newest of version 20 that the registry has for this platform.
    let package = format!("@ccusage/ccusage-linux-{cpu}@^20");
    let packed = run(Path::new("npm"), &["pack", "--silent", &package], &folder);
    let packed = packed.ok_or("npm is missing or did not reach its registry")?;
    let archive = String::from_utf8_lossy(&packed).trim().to_owned();
    run(Path::new("tar"), &["xzf", &archive], &folder).ok_or("tar cannot unpack it")?;
    run(Path::new("chmod"), &["+x", "package/bin/ccusage"], &folder).ok_or("it cannot be made a program")?;
    Ok(binary)
}

/// CPU time of ccusage over a home, on one thread, and the tokens it found.
fn count_with(binary: &Path, agent: Agent, home: &Path) -> (Duration, u64) {
    let agent = if agent == Agent::Codex { "codex" } else { "claude" };
    let arguments = [agent, "daily", "--json", "--offline", "--timezone", "UTC", "--single-thread"];
    let once = || {
        let before = spent("self").1;
        let out = run(binary, &arguments, home).expect("ccusage runs");
        let out: serde_json::Value = serde_json::from_slice(&out).unwrap();
        (spent("self").1 - before, out["totals"]["totalTokens"].as_u64().unwrap_or(0))
    };
    [once(), once(), once()].into_iter().min().unwrap()
}

fn measure(agent: Agent, source: Option<FileSource>, megabytes: u64) {
    let home = tempfile::tempdir().unwrap();
    let made = make(&Plan {
        home: home.path(),
        agent,
        files: (megabytes << 20).div_ceil(FILE) as usize,
        bytes: megabytes << 20,
        folders: 40,
        now_ms: Clock::system().now().as_millis(),
        ages: (DAY / 24, DAY * 6),
        seed: 1,
    });
    let bytes: u64 = made.iter().map(|m| m.bytes).sum();
    let count: u64 = made.iter().map(|m| m.lines).sum();
    let megabytes = bytes as f64 / 1e6;
    let name = agent.source();
    table(&format!(
        "History of {name}: {megabytes:.0} MB in {} files, {count} lines; MB by CPU second",
        made.len()
    ));
    let rate = |spent: Duration| megabytes / spent.as_secs_f64();
    let show = |spent: Duration| format!("{:.0} MB/s", rate(spent));

    let counting = cpu(3, || {
        each(&made, |bytes| {
            std::hint::black_box(memchr::memchr_iter(b'\n', bytes).count());
        });
    });
    row("counting lines", &show(counting), "baseline");
    let skimming = cpu(3, || {
        let mut sum = 0;
        each(&made, |bytes| sum += lines(bytes).map(skim).sum::<u64>());
        std::hint::black_box(sum);
    });
    row("serde_json, most fields skipped", &show(skimming), "baseline");
    let rival = match ccusage() {
        Ok(binary) => {
            let (spent, tokens) = count_with(&binary, agent, home.path());
            assert!(tokens > 0, "ccusage found nothing");
            row("ccusage 20, native, one thread", &show(spent), "baseline");
            Some(spent)
        }
        Err(why) => {
            row("ccusage 20", &format!("not run: {why}"), "");
            None
        }
    };
    let beside = |spent: Duration| {
        let to = |base: Duration| base.as_secs_f64() / spent.as_secs_f64();
        let rival = rival.map_or(String::new(), |rival| format!(", {:.2}x ccusage", to(rival)));
        format!("{:.2} of serde_json skipping{rival}", to(skimming))
    };
    if let Some(source) = source {
        let mut events = 0;
        let decoding = cpu(3, || events = decode(&source, &made));
        row(&format!("our decoder alone, {events} events"), &show(decoding), &beside(decoding));
    }
    if LIST.iter().any(|def| def.name == name) {
        let runs = [whole(home.path(), name), whole(home.path(), name), whole(home.path(), name)];
        let (spent, wall) = runs.into_iter().min().unwrap();
        row(
            "read, folded and kept",
            &show(spent),
            &format!("{}; target 500 MB/s, 1.5x ccusage", beside(spent)),
        );
        row("the same by the wall clock", &format!("{:.0} MB/s", rate(wall)), "");
    } else {
        row("ours", "not run: no such source in this build", "");
    }
}

fn main() {
    let megabytes = setting("AGENT_SESSION_EXPORTER_BENCH_MB", 400);
    let sources = [claude_code::FILES, codex::FILES];
    for agent in Agent::ALL {
        measure(agent, sources.into_iter().find(|s| s.name == agent.source()), megabytes);
    }
}
