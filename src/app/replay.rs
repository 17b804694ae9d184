//! `replay`: recordings to what scrapes at equal intervals would have shown of them, or to a trace store.

mod traces;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context as _, ensure};

use super::{offer_capabilities, owner_options, runners, series, start_logging};
use crate::clock::Clock;
use crate::config::Config;
use crate::event::{Event, Reducer, SourceId, Timestamp};
use crate::sources::recorded::{Played, Setting, play};
use crate::sources::{LIST, SourceDef};
use crate::store::offline::Offline;
use crate::telemetry::Telemetry;
use crate::views::history::History;

/// How long is looked on behind the last record, so that what follows from silence shows: as long as an ended session
/// has series.
const LOOK_ON_MS: i64 = 15 * 60_000;
/// Scrapes of one run. At one a second this is a year.
const MAX_SCRAPES: i64 = 32_000_000;

/// Files of each source.
type BySource = Vec<(&'static SourceDef, Vec<PathBuf>)>;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Source of the files that do not say theirs.
    pub format: String,
    /// Files, each with its source before a colon where it is another one.
    pub files: Vec<String>,
    /// Time between scrapes.
    pub step_ms: i64,
    /// When to begin, else with the first record.
    pub from: Option<Moment>,
    /// When to stop, else a quarter of an hour behind the last record.
    pub until: Option<Moment>,
    /// Labels on every series.
    pub labels: Vec<(String, String)>,
    /// What is written.
    pub to: To,
    /// Rules that a unit test loads.
    pub rules: Vec<String>,
    /// Where to write, else standard output.
    pub output: Option<PathBuf>,
}

/// A moment of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A point in time.
    At(Timestamp),
    /// So many milliseconds behind the last record.
    Behind(i64),
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// OpenMetrics with timestamps.
    OpenMetrics,
    /// A file for `promtool test rules`.
    UnitTest,
    /// Nothing: spans and records of steps are sent by OTLP.
    Otlp,
}

// === impl Moment ===

impl Moment {
    /// RFC 3339, or `+` and a duration.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix('+') {
            Some(behind) => duration_ms(behind).map(Self::Behind),
            None => Timestamp::parse(text).ok().map(Self::At),
        }
    }
}

/// Milliseconds of `1h30m`, `15s`, `500ms`, also with fractions: `0.5s`.
pub fn duration_ms(text: &str) -> Option<i64> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = rest.split_at(digits);
        let end = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        let factor = match &unit[..end] {
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 60e3,
            "h" => 3600e3,
            "d" => 86_400e3,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * factor;
        rest = &unit[end..];
    }
    (!text.is_empty() && total < 1e15).then_some(total as i64)
}

/// Plays recordings and writes what scrapes would have shown, or sends what they tell.
///
/// # Errors
/// When a file cannot be read, nothing in them has a time, the output cannot be written, or a collector does not take
/// everything.
pub fn replay(config: Config, wanted: Replay) -> anyhow::Result<()> {
    start_logging(&config);
    if wanted.to == To::Otlp {
        return traces::send(&config, &wanted);
    }
    let telemetry = Arc::new(Telemetry::new());
    let reducer = Arc::new(Reducer::new([0; 16], runners(&config)));
    let events = recorded(&config, &wanted, &reducer, &telemetry)?;
    let (Some((first, _)), Some((last, _))) = (events.first(), events.last()) else { return Ok(()) };
    let (first, last) = (*first, *last);
    let moment = |moment: Moment| match moment {
        Moment::At(at) => at,
        Moment::Behind(ms) => last.plus(ms),
    };
    let start = wanted.from.map_or(first, moment);
    // The future was not recorded.
    let now = Clock::system().now().max(last);
    let until = wanted.until.map_or_else(|| last.plus(LOOK_ON_MS).min(now), moment);
    ensure!(start <= until, "the replay would end before it begins: {start} to {until}");
    ensure!(
        until.since(start) / wanted.step_ms < MAX_SCRAPES,
        "more than {MAX_SCRAPES} scrapes from {start} to {until}: take a longer --step"
    );
    let history = scraped(&config, &wanted, reducer, telemetry, events, (first.min(start), start, until))?;
    let (series, samples) = history.size();
    tracing::info!(%start, %until, series, samples, "replayed");
    write(&history, &wanted)
}

/// What the files tell, in the order in which it became known.
fn recorded(
    config: &Config,
    wanted: &Replay,
    reducer: &Arc<Reducer>,
    telemetry: &Arc<Telemetry>,
) -> anyhow::Result<Vec<(Timestamp, Event)>> {
    let files = by_source(wanted)?;
    let sources: Vec<&SourceDef> = files.iter().map(|(def, _)| *def).collect();
    offer_capabilities(telemetry, &sources);
    let mut events = events(config, files, reducer, telemetry)?;
    // What became known at one moment stays in the order of its file.
    events.sort_by_key(|(at, _)| *at);
    ensure!(!events.is_empty(), "nothing in these files has a time");
    Ok(events)
}

/// Everything that the files tell.
fn events(
    config: &Config,
    files: BySource,
    reducer: &Arc<Reducer>,
    telemetry: &Arc<Telemetry>,
) -> anyhow::Result<Vec<(Timestamp, Event)>> {
    let setting = Setting {
        reducer: reducer.clone(),
        telemetry: telemetry.clone(),
        allow_builtin: config.push.allow_builtin_sources,
    };
    let mut events = Vec::new();
    for (def, paths) in files {
        let mut played = Played::default();
        play(def, &paths, &setting, &mut played)?;
        tracing::info!(
            source = def.name,
            files = paths.len(),
            records = played.records,
            events = played.events.len(),
            "read"
        );
        for (reason, n) in &played.refused {
            tracing::warn!(source = def.name, reason, n, "records were left out");
        }
        for (kind, n) in &played.unknown {
            tracing::debug!(source = def.name, kind, n, "records of an unknown kind");
        }
        events.append(&mut played.events);
    }
    Ok(events)
}

fn by_source(wanted: &Replay) -> anyhow::Result<BySource> {
    let mut by_source = BySource::new();
    for file in &wanted.files {
        let (def, path) = source_of(file, &wanted.format)?;
        match by_source.iter_mut().find(|(known, _)| known.name == def.name) {
            Some((_, paths)) => paths.push(path),
            None => by_source.push((def, vec![path])),
        }
    }
    Ok(by_source)
}

/// The source of a file: what stands before a colon, where that is the name of one, else the default.
fn source_of(file: &str, format: &str) -> anyhow::Result<(&'static SourceDef, PathBuf)> {
    let named = |name: &str| LIST.iter().copied().find(|def| def.name == name);
    if let Some((name, path)) = file.split_once(':')
        && let Some(def) = named(name)
    {
        return Ok((def, PathBuf::from(path)));
    }
    let names = || LIST.iter().map(|def| def.name).collect::<Vec<_>>().join(", ");
    let def =
        named(format).with_context(|| format!("no source is called {format:?}; there are {}", names()))?;
    Ok((def, PathBuf::from(file)))
}

/// Scrapes from `start` to `until`; counting begins at `epoch`.
fn scraped(
    config: &Config,
    wanted: &Replay,
    reducer: Arc<Reducer>,
    telemetry: Arc<Telemetry>,
    events: Vec<(Timestamp, Event)>,
    (epoch, start, until): (Timestamp, Timestamp, Timestamp),
) -> anyhow::Result<History> {
    // One clock for the whole life of a process that replays once.
    let hand: &'static AtomicI64 = Box::leak(Box::new(AtomicI64::new(epoch.as_millis())));
    let mut options = owner_options(config, &[], None)?;
    options.file_sources = LIST
        .iter()
        .filter(|d| d.start.is_some() && d.live.is_none())
        .map(|d| SourceId::from(d.name))
        .collect();
    let mut store = Offline::begin(options, Clock::held(hand), reducer, telemetry.clone(), epoch)?;
    let mut history = History::new(series(config), telemetry, &wanted.labels, start, wanted.step_ms);
    let mut events = events.into_iter().peekable();
    while history.next() <= until {
        let now = history.next();
        hand.store(now.as_millis(), Ordering::SeqCst);
        let mut quiet = true;
        let due = std::iter::from_fn(|| events.next_if(|(at, _)| *at <= now));
        store.take(due.inspect(|_| quiet = false).map(|(_, event)| event));
        store.pass();
        history.scrape(&store.snapshot(), quiet);
    }
    Ok(history)
}

/// Where the rules lie. promtool looks from the test's own folder, and says nothing where it finds none.
fn rules(wanted: &Replay) -> Vec<String> {
    let whole =
        |rule: &String| std::path::absolute(rule).map_or_else(|_| rule.clone(), |p| p.display().to_string());
    wanted.rules.iter().map(whole).collect()
}

fn write(history: &History, wanted: &Replay) -> anyhow::Result<()> {
    let to = |out: &mut dyn std::io::Write| {
        let mut out = std::io::BufWriter::with_capacity(1 << 16, out);
        match wanted.to {
            To::OpenMetrics => history.write_openmetrics(&mut out)?,
            To::UnitTest => history.write_unit_test(&rules(wanted), &mut out)?,
            To::Otlp => {}
        }
        out.flush()
    };
    match &wanted.output {
        Some(path) => std::fs::File::create(path)
            .and_then(|mut file| to(&mut file))
            .with_context(|| format!("output {}", path.display())),
        None => match to(&mut std::io::stdout().lock()) {
            // A reader that has seen enough (`| head`) is no failure.
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            done => done.context("standard output"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, ms) in
            [("15s", 15_000), ("1h30m", 5_400_000), ("500ms", 500), ("0.5s", 500), ("2d", 172_800_000)]
        {
            assert_eq!(duration_ms(text), Some(ms), "{text}");
        }
        for text in ["", "15", "s", "1x", "-1s", "1s2"] {
            assert_eq!(duration_ms(text), None, "{text}");
        }
    }

    #[test]
    fn moments_are_absolute_or_behind_the_last_record() {
        assert_eq!(Moment::parse("+45m"), Some(Moment::Behind(2_700_000)));
        assert_eq!(Moment::parse("1970-01-01T00:00:01Z"), Some(Moment::At(Timestamp::from_millis(1_000))));
        assert_eq!(Moment::parse("yesterday"), None);
    }
}
