//! The configuration: defaults, file, environment and flags, in this order, made into one typed value. It runs nothing
//! and opens no file but its own.

mod keys;
mod problem;
mod value;

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use toml::Value;

use crate::otlp::Settings;
use crate::sources::live::{Configured, Place};

pub use self::keys::{CONFIG_FILE, ENV_PREFIX, KEYS, Key, SOURCE_KEYS, source_keys, variable};
pub use self::problem::{Problem, Problems};
pub use self::value::Kind;

/// Variables by which agents themselves are told where they live, with the source that reads that folder.
const AGENT_HOMES: &[(&str, &str)] = &[("CODEX_HOME", "codex")];
/// Paths of the HTTP surface that the metrics cannot take.
const RESERVED_PATHS: &[&str] = &["/api/", "/-/"];

/// What the exporter runs with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Home folders in which agents are looked for.
    pub home: Vec<PathBuf>,
    /// The only folder that is written to.
    pub state_dir: PathBuf,
    /// Files modified longer ago are not read.
    pub history_max_age: Duration,
    /// Which sessions have series.
    pub series: Series,
    /// Sessions with series.
    pub max_sessions: usize,
    /// Sessions in memory.
    pub max_tracked: usize,
    /// Whether events are read from standard input.
    pub stdin: bool,
    /// Level of the log, one of the words `tracing` knows.
    pub log: &'static str,
    /// Agents that are not expected to change files.
    pub read_only_agents: Vec<String>,
    /// The server.
    pub web: Web,
    /// Pushed events.
    pub push: Push,
    /// Desktop notifications.
    pub notify: Notify,
    /// Commands to recognise besides the built-in ones.
    pub runners: Runners,
    /// What leaves by OTLP.
    pub otlp: Otlp,
    /// Sources that were named, by name.
    pub sources: BTreeMap<String, Source>,
    thresholds: BTreeMap<&'static str, u32>,
}

/// Which sessions have series of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// All, with the signals that alerts use.
    Full,
    /// All, with every signal.
    All,
    /// Those somebody has to look at.
    Attention,
    /// None.
    Off,
}

/// The server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Web {
    /// Addresses to listen on; never empty.
    pub listen_address: Vec<SocketAddr>,
    /// TLS and passwords.
    pub config_file: Option<PathBuf>,
    /// Path of the metrics.
    pub telemetry_path: String,
    /// Whether an address may be reachable for other machines.
    pub allow_remote: bool,
    /// Further names of this host.
    pub allowed_hosts: Vec<String>,
}

/// Pushed events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// Whether they are taken over HTTP.
    pub enabled: bool,
    /// File with the bearer token.
    pub token_file: Option<PathBuf>,
    /// Whether they may name a built-in source.
    pub allow_builtin_sources: bool,
    /// Longest body, unpacked.
    pub max_body_bytes: usize,
}

/// Desktop notifications, for the command that raises them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notify {
    /// Where webhooks are taken.
    pub listen_address: SocketAddr,
    /// Notifications a minute.
    pub per_minute: u32,
    /// Notifications at once.
    pub burst: u32,
}

/// Commands to recognise, added to the built-in ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runners {
    /// Test runners.
    pub tests: Vec<String>,
    /// Build tools.
    pub builds: Vec<String>,
}

/// What leaves by OTLP.
#[derive(Clone, Debug, Default)]
pub struct Otlp {
    /// The endpoint, unless the environment names one.
    pub endpoint: Option<String>,
    /// Items that may wait.
    pub spool_max_items: u64,
    /// Bytes that may wait.
    pub spool_max_bytes: u64,
    /// Whether the exporter traces itself.
    pub own_traces: bool,
    /// What the standard variables say, with the endpoint from above.
    pub settings: Settings,
}

/// What was said about one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Whether it runs; unset leaves it to the source.
    pub enabled: Option<bool>,
    /// Folders of the agent besides those below home.
    pub roots: Vec<PathBuf>,
    /// Its servers.
    pub live: Configured,
}

/// What a configuration is made of.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Flags that were given, by flag name without dashes.
    pub flags: Vec<(String, Vec<String>)>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// Names of the sources there are.
    pub sources: Vec<&'static str>,
}

// === impl Series ===

impl Series {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Full, Self::All, Self::Attention, Self::Off];

    /// Its word in the configuration and in the label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::All => "all",
            Self::Attention => "attention",
            Self::Off => "off",
        }
    }
}

// === impl Config ===

impl Config {
    /// Puts defaults, file, environment and flags together.
    ///
    /// # Errors
    /// Everything that is wrong, not just the first of it.
    pub fn load(inputs: &Inputs) -> Result<Self, Problems> {
        let home = inputs.env.get("HOME").filter(|home| !home.is_empty());
        let mut loader = Loader { config: Self::blank(), home, inputs, problems: Vec::new() };
        loader.defaults();
        loader.file();
        loader.environment();
        loader.flags();
        loader.check();
        let Loader { config, problems, .. } = loader;
        if problems.is_empty() { Ok(config) } else { Err(Problems(problems)) }
    }

    /// The limits of derived states, in the type of whoever uses them. Its fields are the keys of `[thresholds]`.
    ///
    /// # Errors
    /// The type has other fields.
    pub fn thresholds<T: DeserializeOwned>(&self) -> Result<T, serde::de::value::Error> {
        T::deserialize(serde::de::value::MapDeserializer::new(self.thresholds.iter().map(|(k, v)| (*k, *v))))
    }

    /// Whether a source runs that does so by default or not.
    pub fn enabled(&self, source: &str, default_on: bool) -> bool {
        if source == "push" {
            return self.push.enabled;
        }
        self.sources.get(source).and_then(|s| s.enabled).unwrap_or(default_on)
    }

    /// Folders to read for a source besides those below home.
    pub fn roots(&self, source: &str) -> &[PathBuf] {
        self.sources.get(source).map_or(&[], |s| &s.roots)
    }

    /// What was said about the servers of a source.
    pub fn live(&self, source: &str) -> Configured {
        self.sources.get(source).map(|s| s.live.clone()).unwrap_or_default()
    }

    /// Before the table has given every field its default.
    fn blank() -> Self {
        Self {
            home: Vec::new(),
            state_dir: PathBuf::new(),
            history_max_age: Duration::ZERO,
            series: Series::Full,
            max_sessions: 0,
            max_tracked: 0,
            stdin: false,
            log: "",
            read_only_agents: Vec::new(),
            web: Web {
                listen_address: Vec::new(),
                config_file: None,
                telemetry_path: String::new(),
                allow_remote: false,
                allowed_hosts: Vec::new(),
            },
            push: Push { enabled: false, token_file: None, allow_builtin_sources: false, max_body_bytes: 0 },
            notify: Notify {
                listen_address: SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
                per_minute: 0,
                burst: 0,
            },
            runners: Runners::default(),
            otlp: Otlp::default(),
            sources: BTreeMap::new(),
            thresholds: BTreeMap::new(),
        }
    }
}

struct Loader<'a> {
    config: Config,
    home: Option<&'a String>,
    inputs: &'a Inputs,
    problems: Vec<Problem>,
}

// === impl Loader ===

impl Loader<'_> {
    fn problem(&mut self, place: impl Into<String>, what: impl Into<String>) {
        self.problems.push(Problem { place: place.into(), what: what.into() });
    }

    fn set(&mut self, key: &Key, value: &Value, place: impl Into<String>) {
        match (key.set)(&mut self.config, key, value, self.home.map(String::as_str)) {
            // A default that cannot hold here is no problem once something else is said.
            Ok(()) => self.problems.retain(|p| p.place != key.path),
            Err(expected) => self.problem(place, expected),
        }
    }

    fn set_source(&mut self, source: &str, key: &Key<Source>, value: &Value, place: impl Into<String>) {
        let entry = self.config.sources.entry(source.to_owned()).or_default();
        if let Err(expected) = (key.set)(entry, key, value, self.home.map(String::as_str)) {
            self.problem(place, expected);
        }
    }

    fn defaults(&mut self) {
        for key in KEYS.iter().filter(|k| !k.optional) {
            let value = literal(key.default);
            self.set(key, &value, key.path);
        }
        // An XDG folder that is not absolute is to be ignored, says its specification.
        if let Some(state) = self.inputs.env.get("XDG_STATE_HOME").filter(|s| Path::new(s).is_absolute()) {
            self.config.state_dir = Path::new(state).join("agent-session-exporter");
            self.problems.retain(|p| p.place != "state_dir");
        }
    }

    fn file(&mut self) {
        let flag = self.inputs.flags.iter().rfind(|(name, _)| name == CONFIG_FILE);
        let named = flag.and_then(|(_, values)| values.last());
        let Some(path) = named.or_else(|| self.inputs.env.get(&variable(CONFIG_FILE))).cloned() else {
            return;
        };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) => return self.problem(path, format!("cannot be read: {e}")),
        };
        let table: toml::Table = match toml::from_str(&text) {
            Ok(table) => table,
            Err(e) => {
                let before = e.span().and_then(|s| text.get(..s.start)).unwrap_or_default();
                let line = before.matches('\n').count() + 1;
                return self.problem(format!("{path}:{line}"), e.message());
            }
        };
        let mut found = Vec::new();
        flatten("", table, &mut found);
        for (key, value) in found {
            self.file_key(&path, &key, &value);
        }
    }

    fn file_key(&mut self, file: &str, path: &str, value: &Value) {
        let place = format!("{path} in {file}");
        if let Some(key) = KEYS.iter().find(|k| k.path == path) {
            return self.set(key, value, place);
        }
        let in_source = path.strip_prefix("sources.").map(|rest| rest.split_once('.').unwrap_or((rest, "")));
        match in_source {
            Some(("push", _)) => self.problem(place, "the push source is configured in [push]"),
            Some((source, _)) if !self.inputs.sources.contains(&source) => {
                let names = self.inputs.sources.iter().copied();
                self.problem(place, problem::unknown("source", source, names));
            }
            Some((_, "")) => {}
            Some((source, name)) => match source_keys(source).find(|k| k.path == name) {
                Some(key) => self.set_source(source, key, value, place),
                None => {
                    self.problem(place, problem::unknown("key", name, source_keys(source).map(|k| k.path)));
                }
            },
            None => self.problem(place, problem::unknown("key", path, KEYS.iter().map(|k| k.path))),
        }
    }

    fn environment(&mut self) {
        let mut known = vec![variable(CONFIG_FILE)];
        for key in KEYS {
            let name = variable(key.path);
            if let Some(given) = self.inputs.env.get(&name) {
                match key.kind.read(&key.kind.split(given)) {
                    Ok(value) => self.set(key, &value, &name),
                    Err(expected) => self.problem(&name, expected),
                }
            }
            known.push(name);
        }
        for source in self.inputs.sources.iter().filter(|s| **s != "push") {
            for key in source_keys(source) {
                let name = variable(&format!("sources.{source}.{}", key.path));
                if let Some(given) = self.inputs.env.get(&name) {
                    match key.kind.read(&key.kind.split(given)) {
                        Ok(value) => self.set_source(source, key, &value, &name),
                        Err(expected) => self.problem(&name, expected),
                    }
                }
                known.push(name);
            }
        }
        for name in self.inputs.env.keys().filter(|name| is_ours(name) && !known.contains(name)) {
            let what = problem::unknown("variable", name, known.iter().map(String::as_str));
            self.problems.push(Problem { place: name.clone(), what });
        }
        for (name, source) in AGENT_HOMES {
            let given = self.inputs.env.get(*name).filter(|v| !v.is_empty());
            if let Some(folder) = given.filter(|_| self.inputs.sources.contains(source)) {
                let roots = &mut self.config.sources.entry((*source).to_owned()).or_default().roots;
                let folder = PathBuf::from(folder);
                if !roots.contains(&folder) {
                    roots.push(folder);
                }
            }
        }
    }

    fn flags(&mut self) {
        for (flag, values) in &self.inputs.flags {
            let Some(key) = KEYS.iter().find(|k| k.flag == Some(flag)) else { continue };
            let place = format!("--{flag}");
            match key.kind.read(values) {
                Ok(value) => self.set(key, &value, place),
                Err(expected) => self.problem(place, expected),
            }
        }
    }

    /// What no key can tell alone.
    fn check(&mut self) {
        let web = self.config.web.clone();
        let path = web.telemetry_path.as_str();
        let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
        if path.len() < 2
            || !path.starts_with('/')
            || !path.chars().all(plain)
            || RESERVED_PATHS.iter().any(|r| path.starts_with(r))
        {
            self.problem("web.telemetry_path", "expected a path as \"/metrics\", outside /api/ and /-/");
        }
        for address in web
            .listen_address
            .iter()
            .filter(|a| !a.ip().is_loopback() && !web.allow_remote && web.config_file.is_none())
        {
            self.problem(
                "web.listen_address",
                format!(
                    "other machines can reach {address}; this needs --web.config.file with TLS or users, or --web.allow-remote"
                ),
            );
        }
        match Settings::read(&self.inputs.env, self.config.otlp.endpoint.as_deref()) {
            Ok(settings) => self.config.otlp.settings = settings,
            Err(wrong) => {
                for wrong in wrong {
                    self.problem(wrong.variable, wrong.what);
                }
            }
        }
        if let Some(most) = self.config.otlp.settings.max_waiting {
            self.config.otlp.spool_max_items = most;
        }
        let address = self.config.notify.listen_address;
        if !address.ip().to_canonical().is_loopback() && !web.allow_remote {
            self.problem(
                "notify.listen_address",
                format!("other machines can reach {address}; this needs --web.allow-remote"),
            );
        }
        if self.config.max_tracked < self.config.max_sessions {
            self.problem("max_tracked", "expected at least as many as max_sessions");
        }
    }
}

/// A literal of the table.
fn literal(toml: &str) -> Value {
    let table: Result<toml::Table, _> = toml::from_str(&format!("value = {toml}"));
    table.ok().and_then(|mut t| t.remove("value")).expect("a default of the table is valid TOML")
}

/// A variable with our prefix. Kubernetes sets such ones too, for a service that is called as we are.
fn is_ours(name: &str) -> bool {
    name.strip_prefix(ENV_PREFIX)
        .is_some_and(|rest| rest != "PORT" && !rest.starts_with("PORT_") && !rest.starts_with("SERVICE_"))
}

/// The leaves of a table with their paths.
fn flatten(above: &str, table: toml::Table, out: &mut Vec<(String, Value)>) {
    for (name, value) in table {
        let path = if above.is_empty() { name } else { format!("{above}.{name}") };
        match value {
            // An empty table of a name that does not exist is a slip as well.
            Value::Table(inner) if !inner.is_empty() => flatten(&path, inner, out),
            Value::Table(_) if is_table(&path) => {}
            value => out.push((path, value)),
        }
    }
}

/// Whether keys of this table exist. Names of sources are checked with their keys.
fn is_table(path: &str) -> bool {
    path == "sources" || KEYS.iter().any(|k| k.parts().0 == path)
}

/// Addresses as Prometheus exporters take them: `:10077` is every interface.
fn addresses(value: &Value) -> Result<Vec<SocketAddr>, String> {
    let given = value::list(value)?;
    let found: Option<Vec<_>> = given.iter().map(|t| place_to_listen(t)).collect();
    found
        .filter(|list| !list.is_empty())
        .ok_or_else(|| "expected addresses with their port, as \"127.0.0.1:10077\"".to_owned())
}

/// One such address.
fn address(value: &Value) -> Result<SocketAddr, String> {
    place_to_listen(value::text(value)?)
        .ok_or_else(|| "expected an address with its port, as \"127.0.0.1:10078\"".to_owned())
}

fn place_to_listen(text: &str) -> Option<SocketAddr> {
    match text.rsplit_once(':') {
        Some(("", port)) => port.parse().ok().map(|port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
        Some(("localhost", port)) => port.parse().ok().map(|port| SocketAddr::from(([127, 0, 0, 1], port))),
        _ => text.parse().ok(),
    }
}

/// Addresses of servers.
fn places(value: &Value) -> Result<Vec<Place>, String> {
    let given = value::list(value)?;
    given.iter().map(|text| Place::parse(text).map_err(|e| e.to_string())).collect()
}
