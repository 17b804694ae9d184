//! Makes history as it lies on a user's disk, out of the recordings: any amount of it, each file a session of its own
//! (or a sub-agent of one), ids and times changed and everything else as it was recorded. The same plan gives the same
//! bytes. Shared by benches and tests, which must not take seconds for it.

#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used, reason = "each user uses its part")]

mod template;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use self::template::{Change, Template, hash};

/// Agents whose files are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Agent {
    ClaudeCode,
    Codex,
}

/// What to make.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The user's home folder.
    pub home: &'a Path,
    pub agent: Agent,
    /// Files in all, sub-agents' included.
    pub files: usize,
    /// Bytes in all, about. A file holds one recording at least, the smallest of all if need be.
    pub bytes: u64,
    /// Folders of projects or days they are spread over.
    pub folders: usize,
    /// Wall time, in milliseconds.
    pub now_ms: i64,
    /// How long ago the youngest and the oldest file were written last.
    pub ages: (Duration, Duration),
    /// Plans that differ in this share no id.
    pub seed: u64,
}

/// A file that was made.
#[derive(Clone, Debug)]
pub struct Made {
    pub path: PathBuf,
    /// The session it is about; a sub-agent's file names its parent.
    pub session: String,
    pub child: bool,
    pub bytes: u64,
    /// Lines that are not empty.
    pub lines: u64,
}

/// A recorded session: its file and those of its sub-agents.
struct Case {
    main: Template,
    children: Vec<(String, Template)>,
}

// === impl Agent ===

impl Agent {
    pub const ALL: [Self; 2] = [Self::ClaudeCode, Self::Codex];

    /// The source that reads its files.
    pub const fn source(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude_code",
            Self::Codex => "codex",
        }
    }

    /// The line that begins another turn, as the agent would append it to a session's file.
    pub fn line(self, session: &str, now_ms: i64, n: u64) -> String {
        let (time, id) = (template::time_of(now_ms), uuid(hash(session.as_bytes()) ^ n));
        match self {
            Self::ClaudeCode => format!(
                r#"{{"parentUuid":null,"isSidechain":false,"promptId":"{}","type":"user","message":{{"role":"user","content":"xxxx"}},"uuid":"{id}","timestamp":"{time}","permissionMode":"default","origin":{{"kind":"human"}},"promptSource":"typed","userType":"external","entrypoint":"cli","cwd":"/home/dev/project","sessionId":"{session}","version":"2.1.235","gitBranch":""}}"#,
                uuid(!n)
            ),
            Self::Codex => format!(
                r#"{{"timestamp":"{time}","type":"event_msg","payload":{{"type":"task_started","turn_id":"{id}","model_context_window":258400}}}}"#
            ),
        }
    }

    fn cases(self) -> Vec<Case> {
        match self {
            Self::ClaudeCode => claude_code(),
            Self::Codex => codex(),
        }
    }

    /// Where a session's file lies, and where those of its sub-agents do.
    fn place(self, plan: &Plan<'_>, n: usize, session: &str) -> (PathBuf, PathBuf) {
        let folder = n % plan.folders.max(1);
        match self {
            Self::ClaudeCode => {
                let project = plan.home.join(format!(".claude/projects/-home-dev-project-{folder:03}"));
                (project.join(format!("{session}.jsonl")), project.join(session).join("subagents"))
            }
            Self::Codex => {
                let (month, day) = (folder / 28 % 12 + 1, folder % 28 + 1);
                let year = 2026 - folder / (12 * 28);
                let day_folder = plan.home.join(format!(".codex/sessions/{year}/{month:02}/{day:02}"));
                let name = format!("rollout-{year}-{month:02}-{day:02}T15-00-00-{session}.jsonl");
                (day_folder.join(name), day_folder)
            }
        }
    }
}

/// An id in its usual spelling, of version 4.
fn uuid(n: u64) -> String {
    let (a, b) = (template::mix(n), template::mix(n ^ 0x5555));
    let [a0, a1, a2] = [a >> 32, (a >> 16) & 0xffff, a & 0xfff];
    format!("{a0:08x}-{a1:04x}-4{a2:03x}-8{:03x}-{:012x}", (b >> 48) & 0xfff, b & 0xffff_ffff_ffff)
}

fn fixtures(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder)
}

/// Files of a folder and of those below it, in a fixed order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|e| e == "jsonl") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// All public transcripts; a session with sub-agents in files of their own is one case.
fn claude_code() -> Vec<Case> {
    let keys = ["\"sessionId\":\"", "\"session_id\":\""];
    let mut all = files(&fixtures("public/claude-code"));
    // A sub-agent without its parent, with words for ids.
    all.retain(|path| !path.ends_with("cc-2.0.28-agent-file-flat-layout/agent-test-hash-123.jsonl"));
    let (children, mains): (Vec<_>, Vec<_>) =
        all.iter().partition(|p| p.components().any(|c| c.as_os_str() == "subagents"));
    let read = |path: &Path| Template::new(fs::read(path).unwrap(), &keys);
    let case = |main: &&PathBuf| {
        let folder = main.with_extension("").join("subagents");
        let own = children.iter().filter(|c| c.starts_with(&folder));
        let named = own.map(|c| (c.file_stem().unwrap().to_str().unwrap().to_owned(), read(c)));
        Case { main: read(main), children: named.collect() }
    };
    mains.iter().map(case).collect()
}

/// Recorded and public rollouts of one thread each, at their ends.
fn codex() -> Vec<Case> {
    let mut paths = files(&fixtures("codex"));
    paths.extend(files(&fixtures("public/codex")));
    let name = |p: &PathBuf| p.file_name().unwrap().to_str().unwrap().to_owned();
    paths.retain(|p| {
        let name = name(p);
        let rollout = name.ends_with(".rollout.jsonl")
            || name.starts_with("rollout-0")
            || name.starts_with("rollout-bare");
        // Parts of a longer recording, and threads that are nothing without another one.
        rollout && !name.contains(".at_") && !name.starts_with("fork") && !name.starts_with("subagent")
    });
    let read = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        let head = bytes.split(|b| *b == b'\n').next().unwrap();
        let head: serde_json::Value = serde_json::from_slice(head).unwrap();
        let thread = head["payload"]["id"].as_str().or(head["id"].as_str()).map(str::to_owned);
        Case { main: Template::of_session(bytes, thread.unwrap().as_bytes()), children: Vec::new() }
    };
    paths.iter().map(read).collect()
}

/// Makes the files of a plan. They are in the page cache afterwards, like anything written.
pub fn make(plan: &Plan<'_>) -> Vec<Made> {
    let mut cases = plan.agent.cases();
    cases.sort_by_key(|case| case.main.bytes.len());
    // Small and large ones take turns.
    let half = cases.len() / 2;
    let mut order: Vec<usize> = (0..half).flat_map(|i| [i, i + half]).chain(2 * half..cases.len()).collect();
    let mut maker = Maker { plan, made: Vec::new(), bytes: 0, buffer: Vec::new() };
    for n in 0.. {
        let left = plan.files.saturating_sub(maker.made.len());
        if left == 0 {
            break;
        }
        // Sub-agents' files are small: what a session may have is the share of as many files as sessions had so far.
        let per_session = maker.made.len().max(1) as f64 / n.max(1) as f64;
        let target =
            (plan.bytes.saturating_sub(maker.bytes) as f64 / left as f64 * per_session.max(1.0)) as usize;
        let mut parts: Vec<&Case> = Vec::new();
        let mut size = 0;
        // Where files are to be small, only small recordings fit; half of the last one has to.
        while let Some(at) = order.iter().position(|i| size + cases[*i].main.bytes.len() / 2 <= target) {
            let next = order.remove(at);
            order.push(next);
            size += cases[next].main.bytes.len();
            parts.push(&cases[next]);
        }
        if parts.is_empty() {
            parts.push(&cases[0]);
        }
        maker.session(n, &parts);
    }
    maker.made
}

struct Maker<'a> {
    plan: &'a Plan<'a>,
    made: Vec<Made>,
    bytes: u64,
    buffer: Vec<u8>,
}

// === impl Maker ===

impl Maker<'_> {
    /// Writes one session whose parts follow each other, the last one ending when the file was written last.
    fn session(&mut self, n: usize, parts: &[&Case]) {
        let plan = self.plan;
        let end_ms = plan.now_ms - self.age_ms();
        let seed = template::mix(plan.seed ^ template::mix(n as u64 + 1));
        let mut shifts = Vec::new();
        let mut until = end_ms;
        for part in parts.iter().rev() {
            // Where nothing is dated, nothing moves.
            let Some((first, last)) = part.main.times else {
                shifts.push(0);
                continue;
            };
            let shift = (until - last).div_euclid(1000);
            until = first + shift * 1000 - 1000;
            shifts.push(shift);
        }
        shifts.reverse();
        let session = parts[0].main.session(seed, shifts[0]);
        let (path, below) = plan.agent.place(plan, n, &session);

        self.buffer.clear();
        let mut lines = 0;
        for (i, (part, shift)) in parts.iter().zip(&shifts).enumerate() {
            let change = Change { session: &session, seed: template::mix(seed ^ i as u64), shift_s: *shift };
            part.main.write(&change, &mut self.buffer);
            lines += part.main.lines;
        }
        self.put(path, &session, false, lines, end_ms);
        for (i, (part, shift)) in parts.iter().zip(&shifts).enumerate() {
            let change = Change { session: &session, seed: template::mix(seed ^ i as u64), shift_s: *shift };
            for (name, child) in &part.children {
                if self.made.len() >= plan.files {
                    return;
                }
                self.buffer.clear();
                child.write(&change, &mut self.buffer);
                let name = format!("{}.jsonl", child.rename(name, &change));
                self.put(below.join(name), &session, true, child.lines, end_ms);
            }
        }
    }

    /// Ages are spread evenly over the files and not in their order.
    fn age_ms(&self) -> i64 {
        let (from, to) = (self.plan.ages.0.as_millis() as i64, self.plan.ages.1.as_millis() as i64);
        let files = self.plan.files.max(1) as u64;
        let at = template::mix(self.plan.seed ^ self.made.len() as u64) % files;
        from + (to - from) * at as i64 / files as i64
    }

    fn put(&mut self, path: PathBuf, session: &str, child: bool, lines: u64, modified_ms: i64) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = File::create_new(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        file.write_all(&self.buffer).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_millis(modified_ms as u64)).unwrap();
        let bytes = self.buffer.len() as u64;
        self.bytes += bytes;
        self.made.push(Made { path, session: session.to_owned(), child, bytes, lines });
    }
}
