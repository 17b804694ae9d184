//! Tool calls as the labelled sessions hold them, one a row: told to the fold as a source would tell them, and judged
//! by a second, plain reading of the definitions, over text and sets of line numbers, without any bound.

use std::collections::{BTreeMap, HashMap, HashSet};

use agent_session_exporter::event::reduce::{Runners, normal_command};
use agent_session_exporter::event::{
    CallEnd, CallOutcome, CallStart, Commands, Fact, Id, Name, ReadRange, Reducer, SessionId, Timestamp,
    ToolClass,
};
use agent_session_exporter::session::Signals;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::made::*;

/// One call.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Row {
    pub(super) session: String,
    pub(super) parent: Option<String>,
    pub(super) ts_ms: i64,
    pub(super) end_ms: Option<i64>,
    pub(super) tool: String,
    pub(super) target: Option<String>,
    pub(super) args: Option<Map<String, Value>>,
    pub(super) exit_code: Option<i32>,
    pub(super) diff_lines: Option<u32>,
    pub(super) error: Option<String>,
    pub(super) out: Option<String>,
}

/// What is known about the calls besides them.
#[derive(Clone, Debug, Default)]
pub(super) struct Around {
    pub(super) root: String,
    pub(super) file_lines: HashMap<String, u32>,
    pub(super) digests: bool,
    /// When a person prompted the root.
    pub(super) prompts: Vec<i64>,
}

/// The numbers that are compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Numbers {
    pub(super) calls: u32,
    pub(super) window: u32,
    pub(super) nothing_new: u32,
    pub(super) errors: u32,
    pub(super) repeated: u32,
    pub(super) coverage: Option<i64>,
    pub(super) distinct: u32,
    pub(super) top_target: u32,
    pub(super) streak: u32,
    pub(super) cycle: u32,
}

// === impl Row ===

impl Row {
    fn class(&self) -> ToolClass {
        match self.tool.as_str() {
            "read" => ToolClass::Read,
            "grep" | "glob" | "list" => ToolClass::Search,
            "edit" | "write" => ToolClass::Edit,
            "bash" => ToolClass::Shell,
            "task" => ToolClass::Task,
            "question" => ToolClass::User,
            "todowrite" => ToolClass::Plan,
            _ => ToolClass::Other,
        }
    }

    fn arg(&self, name: &str) -> Option<&Value> {
        self.args.as_ref()?.get(name)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.arg(name)?.as_str()
    }

    /// Command of a shell call, normalised.
    fn command(&self) -> Option<String> {
        self.text("command").filter(|_| self.class() == ToolClass::Shell).map(normal_command)
    }

    fn plan(&self) -> Option<String> {
        let items = self.arg("todos")?.as_array()?;
        let status = |item: &Value| item["status"].as_str().unwrap_or_default().to_owned();
        Some(items.iter().map(status).collect::<Vec<_>>().join(","))
    }

    pub(super) fn key(&self) -> String {
        let rest = self.command().or(self.plan()).unwrap_or_else(|| {
            let sorted: BTreeMap<_, _> = self.args.iter().flatten().collect();
            serde_json::to_string(&sorted).unwrap()
        });
        format!("{} {rest}", self.tool)
    }

    fn target(&self) -> String {
        let path = self.text("filePath").or(self.text("path")).unwrap_or_default();
        let aimed = format!("{path}{}", self.text("pattern").unwrap_or_default());
        let named = || self.target.clone().unwrap_or_default();
        let what = self.command().unwrap_or_else(|| if aimed.is_empty() { named() } else { aimed });
        format!("{} {what}", self.class().as_str())
    }

    /// First and last line a read asks for; `None`: all there are, or as many as nobody knows.
    fn lines(&self, around: &Around) -> Option<(u32, u32)> {
        let number = |name: &str| self.arg(name).and_then(Value::as_u64).map(|n| n as u32);
        let length = around.file_lines.get(self.text("filePath")?);
        let first = number("offset").unwrap_or(0);
        let last = number("limit").map(|n| first + n).or(length.copied())?;
        Some((first + 1, last.max(first + 1)))
    }

    fn failed(&self) -> bool {
        self.error.is_some() || self.exit_code.is_some_and(|code| code != 0)
    }

    fn commits(&self) -> bool {
        let starts = |part: &str| part.trim_start().starts_with("git commit");
        self.command().is_some_and(|c| c.split([';', '&', '|']).any(starts))
    }

    /// Whether it is an advance, once it is over.
    fn landed(&self) -> bool {
        let edited = self.class() == ToolClass::Edit && self.diff_lines.is_some_and(|n| n > 0);
        self.error.is_none() && (edited || self.exit_code == Some(0) && self.commits())
    }

    pub(super) fn start(&self, call: &str, reducer: &Reducer, around: &Around, runners: bool) -> CallStart {
        let bytes = |text: String| reducer.hash(text.as_bytes());
        let commands = match self.text("command") {
            Some(line) if runners => reducer.commands(line),
            _ => Commands(if self.commits() { Commands::COMMIT } else { 0 }),
        };
        let total = self.text("filePath").and_then(|f| around.file_lines.get(f)).copied();
        let read = self.lines(around).filter(|_| self.class() == ToolClass::Read);
        CallStart {
            tool: Name::from(self.tool.as_str()),
            key: Some(bytes(self.key())),
            target: Some(bytes(self.target())),
            read: read.map(|(start, end)| ReadRange { start, end, total }),
            commands,
            ..start(call, self.class())
        }
    }

    pub(super) fn end(&self, call: &str, reducer: &Reducer, around: &Around) -> CallEnd {
        let error = self.error.as_ref().map(|text| reducer.error_fingerprint(&self.tool, text));
        let output = self.out.as_ref().filter(|_| around.digests).map(|out| reducer.hash(out.as_bytes()));
        CallEnd {
            outcome: if self.failed() { CallOutcome::Error } else { CallOutcome::Ok },
            exit_code: self.exit_code,
            diff_lines: self.diff_lines,
            error,
            output,
            ..call_end(call)
        }
    }
}

// === impl Numbers ===

impl Numbers {
    pub(super) fn of(signals: &Signals) -> Self {
        Self {
            calls: signals.calls_since_progress,
            window: signals.window_calls,
            nothing_new: signals.nothing_new,
            errors: signals.error_streak,
            repeated: signals.repeated_call_max,
            coverage: signals.read_coverage_ratio().map(|r| (r * 1000.0).round() as i64),
            distinct: signals.distinct_keys,
            top_target: signals.top_target_calls,
            streak: signals.call_streak,
            cycle: signals.cycle_repeats,
        }
    }

    /// What the definitions give at a moment.
    pub(super) fn judged(rows: &[Row], around: &Around, at: i64) -> Self {
        let over = |r: &&Row| r.end_ms.is_some_and(|end| end <= at);
        let landed = rows.iter().filter(over).filter(|r| r.landed()).filter_map(|r| r.end_ms);
        let prompts = around.prompts.iter().copied().filter(|p| *p <= at);
        let cleared = landed.chain(prompts).max().unwrap_or(i64::MIN);
        let mut since: Vec<&Row> = rows.iter().filter(|r| r.ts_ms <= at && r.ts_ms > cleared).collect();
        // The root's go first where two began at once.
        since.sort_by_key(|r| (r.ts_ms, r.session != around.root, r.session.clone()));

        let mut read: HashMap<&str, HashSet<u32>> = HashMap::new();
        let mut whole: HashSet<&str> = HashSet::new();
        let mut last: HashMap<String, (i64, Option<&str>)> = HashMap::new();
        let mut nothing: HashMap<String, u32> = HashMap::new();
        let mut errors: (String, &str, u32) = (String::new(), "", 0);
        // Key, target, whether it is new; file, lines read of it and its length.
        type Judged<'a> = (String, String, bool, Option<(&'a str, u32, u32)>);
        let mut all: Vec<Judged<'_>> = Vec::new();
        for row in since {
            let (key, over) = (row.key(), over(&row));
            let failed = over && row.failed();
            let known = last.get(&key).copied();
            let file = row.text("filePath").filter(|_| row.class() == ToolClass::Read);
            let mut got = None;
            let new = match file {
                Some(file) if !failed => {
                    let length = around.file_lines.get(file).copied();
                    let (first, end) = row.lines(around).unwrap_or((1, u32::MAX));
                    let wanted: Vec<u32> = match row.lines(around) {
                        Some(_) => (first..=length.unwrap_or(u32::MAX).min(end)).collect(),
                        None => Vec::new(),
                    };
                    got = length.map(|length| (file, wanted.len() as u32, length));
                    let seen = read.entry(file).or_default();
                    let fresh = wanted.iter().filter(|line| !seen.contains(line)).count();
                    let covered = whole.contains(file);
                    if row.lines(around).is_none() {
                        whole.insert(file);
                    }
                    let asked = wanted.len();
                    seen.extend(wanted);
                    !covered && (row.lines(around).is_none() || fresh as f64 > 0.05 * asked.max(1) as f64)
                }
                Some(_) => known.is_none(),
                None => match known {
                    None => true,
                    Some((started, out)) => {
                        let own = row.out.as_deref().filter(|_| over && around.digests);
                        let differs = own.is_some() && out.is_some() && own != out;
                        let paced = row.class() == ToolClass::Shell && !failed;
                        differs || paced && row.ts_ms - started >= 30_000
                    }
                },
            };
            let out = row.out.as_deref().filter(|_| over && around.digests).or(known.and_then(|k| k.1));
            last.insert(key.clone(), (row.ts_ms, out));
            if !new {
                *nothing.entry(key.clone()).or_default() += 1;
            }
            let looks = matches!(row.class(), ToolClass::Read | ToolClass::Search | ToolClass::Plan);
            if failed {
                let text = row.error.as_deref().unwrap_or("exit");
                let masked = |c: char| if c.is_ascii_digit() { '0' } else { c };
                let print =
                    format!("{} {}", row.tool, text.chars().take(100).map(masked).collect::<String>());
                errors =
                    if errors.0 == print { (print, &row.tool, errors.2 + 1) } else { (print, &row.tool, 1) };
            } else if over && !looks && errors.1 != row.tool {
                errors = (String::new(), "", 0);
            }
            all.push((key, row.target(), new, got));
        }
        let window = &all[all.len().saturating_sub(60)..];
        let mut targets: HashMap<&str, u32> = HashMap::new();
        let mut lines: HashMap<&str, (u32, u32)> = HashMap::new();
        for (_, target, _, got) in window {
            *targets.entry(target).or_default() += 1;
            if let Some((file, n, length)) = got {
                lines.entry(file).or_insert((0, *length)).0 += n;
            }
        }
        let keys: Vec<&str> = window.iter().map(|w| w.0.as_str()).collect();
        let cycle = |length: usize| {
            let block = |n: usize| keys.len().checked_sub(length * n).map(|from| &keys[from..from + length]);
            (1..).take_while(|n| block(*n).is_some() && block(*n) == block(1)).count()
        };
        let coverage =
            |(read, length): &(u32, u32)| (f64::from(*read) / f64::from(*length) * 1000.0).round() as i64;
        Self {
            calls: all.len() as u32,
            window: window.len() as u32,
            nothing_new: window.iter().filter(|w| !w.2).count() as u32,
            errors: errors.2,
            repeated: nothing.values().copied().max().unwrap_or(0),
            coverage: lines.values().map(coverage).max(),
            distinct: keys.iter().collect::<HashSet<_>>().len() as u32,
            top_target: targets.values().copied().max().unwrap_or(0),
            streak: keys.iter().rev().take_while(|k| Some(*k) == keys.last()).count() as u32,
            cycle: (1..=5).map(cycle).max().unwrap_or(0) as u32,
        }
    }

    /// The alerts Spinning, RepeatingError and SlowLoop, without their guard.
    pub(super) fn flag(&self) -> bool {
        let spins = self.window >= 30 && f64::from(self.nothing_new) / f64::from(self.window) >= 0.6;
        self.calls >= 20 && (spins || self.errors >= 10 || self.repeated >= 20)
    }
}

/// Sessions to which calls are told.
pub(super) struct Telling {
    pub(super) story: Story,
    reducer: Reducer,
}

/// What happens at a moment.
pub(super) struct Happening {
    pub(super) ms: i64,
    pub(super) session: String,
    parent: Option<String>,
    pub(super) fact: Fact,
}

impl Telling {
    pub(super) fn new() -> Self {
        Self { story: Story::new(), reducer: Reducer::new([9; 16], Runners::default()) }
    }

    /// The rows as events, in order; a session's turn begins with its first call.
    pub(super) fn events(&self, rows: &[Row], around: &Around, runners: bool) -> Vec<Happening> {
        let mut events = Vec::new();
        let mut begun: Vec<&str> = Vec::new();
        for (n, row) in rows.iter().enumerate() {
            let id = format!("c{n}");
            let mut push = |ms, fact| {
                let (session, parent) = (row.session.clone(), row.parent.clone());
                events.push(Happening { ms, session, parent, fact });
            };
            if !begun.contains(&row.session.as_str()) {
                begun.push(&row.session);
                push(row.ts_ms - 1, turn("t").fact);
            }
            push(row.ts_ms, Fact::ToolStarted(row.start(&id, &self.reducer, around, runners)));
            if row.class() == ToolClass::User && row.end_ms.is_none() {
                push(row.ts_ms, asks(&id, agent_session_exporter::event::ActionKind::Question));
            }
            if let Some(end) = row.end_ms {
                push(end, Fact::ToolEnded(row.end(&id, &self.reducer, around)));
            }
        }
        for ms in &around.prompts {
            events.push(Happening { ms: *ms, session: around.root.clone(), parent: None, fact: prompt() });
        }
        events.sort_by_key(|e| (e.ms, e.fact.rank()));
        events
    }

    pub(super) fn tell(&mut self, id: u64, happening: &Happening) {
        let time = Timestamp::from_millis(happening.ms);
        let told = Told { fact: happening.fact.clone(), request: Some(Id::from("t")) };
        let mut event = event(&happening.session, id, Some(time), told, time);
        event.parent = happening.parent.as_deref().map(SessionId::from);
        self.story.take(event);
    }

    pub(super) fn numbers(&self, root: &str) -> Numbers {
        self.story.ask(root, 0, |_, view| Numbers::of(view.signals()))
    }
}
