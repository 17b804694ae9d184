//! The table of keys. Parser, variables, flags, help and the example file are derived from it; every default of the
//! exporter stands here, once.

use toml::Value;

use super::value::{self, Expected, Kind};
use super::{Config, Series, Source};
use crate::sources::LIST;

/// One key of the configuration.
pub struct Key<T = Config> {
    /// Where it stands in the file: table and name.
    pub path: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// The default as TOML; for an optional key an example.
    pub default: &'static str,
    /// Whether it is unset by default.
    pub optional: bool,
    /// What it does, in a sentence or two.
    pub help: &'static str,
    /// The flag that sets it, without dashes.
    pub flag: Option<&'static str>,
    pub(super) set: fn(&mut T, &Self, &Value, Option<&str>) -> Result<(), Expected>,
}

/// Beginning of the name of every variable.
pub const ENV_PREFIX: &str = "AGENT_SESSION_EXPORTER_";
/// The flag and variable that name the file itself.
pub const CONFIG_FILE: &str = "config.file";

/// Every key but those of single sources.
pub const KEYS: &[Key] = &[
    Key {
        path: "home",
        kind: Kind::List,
        default: r#"["~"]"#,
        optional: false,
        help: "Home folders in which agents are looked for.",
        flag: Some("home"),
        set: |c, _, v, home| match value::paths(v, home)? {
            none if none.is_empty() => Err("expected at least one folder".to_owned()),
            some => {
                c.home = some;
                Ok(())
            }
        },
    },
    Key {
        path: "state_dir",
        kind: Kind::Text,
        default: r#""~/.local/state/agent-session-exporter""#,
        optional: false,
        help: "Folder of the exporter's own state, the only one it writes to. By default it follows XDG_STATE_HOME.",
        flag: Some("state-dir"),
        set: |c, _, v, home| value::path(v, home).map(|x| c.state_dir = x),
    },
    Key {
        path: "history_max_age",
        kind: Kind::Text,
        default: r#""7d""#,
        optional: false,
        help: "Files that were modified longer ago are not read (s, m, h, d).",
        flag: Some("history.max-age"),
        set: |c, _, v, _| value::duration(v).map(|x| c.history_max_age = x),
    },
    Key {
        path: "series",
        kind: Kind::Text,
        default: r#""full""#,
        optional: false,
        help: "Series per session: full; all (also signals that no alert uses); attention (only sessions somebody \
               has to look at); off (aggregates alone).",
        flag: Some("series"),
        set: |c, _, v, _| value::choice(v, &Series::ALL.map(|s| (s.as_str(), s))).map(|x| c.series = x),
    },
    Key {
        path: "max_sessions",
        kind: Kind::Number,
        default: "1000",
        optional: false,
        help: "Sessions that have series of their own; beyond it ended ones leave first.",
        flag: Some("max-sessions"),
        set: |c, _, v, _| value::number(v, 1).map(|x| c.max_sessions = x),
    },
    Key {
        path: "max_tracked",
        kind: Kind::Number,
        default: "50000",
        optional: false,
        help: "Sessions that are kept in memory.",
        flag: Some("max-tracked"),
        set: |c, _, v, _| value::number(v, 1).map(|x| c.max_tracked = x),
    },
    Key {
        path: "stdin",
        kind: Kind::Switch,
        default: "false",
        optional: false,
        help: "Read events from standard input, one JSON object a line.",
        flag: Some("stdin"),
        set: |c, _, v, _| value::switch(v).map(|x| c.stdin = x),
    },
    Key {
        path: "log",
        kind: Kind::Text,
        default: r#""info""#,
        optional: false,
        help: "What is logged to standard error: error, warn, info, debug or trace.",
        flag: Some("log.level"),
        set: |c, _, v, _| {
            const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
            value::choice(v, &LEVELS.map(|l| (l, l))).map(|x| c.log = x)
        },
    },
    Key {
        path: "read_only_agents",
        kind: Kind::List,
        default: r#"["plan", "explore"]"#,
        optional: false,
        help: "Agents that are not expected to change files, where a source does not say so itself.",
        flag: None,
        set: |c, _, v, _| value::list(v).map(|x| c.read_only_agents = x),
    },
    Key {
        path: "web.listen_address",
        kind: Kind::List,
        default: r#"["127.0.0.1:10077"]"#,
        optional: false,
        help: "Addresses to serve on. Other machines are served only with web.config_file or web.allow_remote.",
        flag: Some("web.listen-address"),
        set: |c, _, v, _| super::addresses(v).map(|x| c.web.listen_address = x),
    },
    Key {
        path: "web.config_file",
        kind: Kind::Text,
        default: r#""web.yml""#,
        optional: true,
        help: "TLS and users, in the form of the Prometheus exporter toolkit. With it other machines may be served.",
        flag: Some("web.config.file"),
        set: |c, _, v, home| value::path(v, home).map(|x| c.web.config_file = Some(x)),
    },
    Key {
        path: "web.telemetry_path",
        kind: Kind::Text,
        default: r#""/metrics""#,
        optional: false,
        help: "Path of the metrics.",
        flag: Some("web.telemetry-path"),
        set: |c, _, v, _| value::text(v).map(|x| x.clone_into(&mut c.web.telemetry_path)),
    },
    Key {
        path: "web.allow_remote",
        kind: Kind::Switch,
        default: "false",
        optional: false,
        help: "Serve on addresses that other machines can reach. Whoever reaches the port can read ids, project \
               names and states, and push events unless push.token_file is set.",
        flag: Some("web.allow-remote"),
        set: |c, _, v, _| value::switch(v).map(|x| c.web.allow_remote = x),
    },
    Key {
        path: "web.allowed_hosts",
        kind: Kind::List,
        default: "[]",
        optional: false,
        help: "Host names under which requests may ask for this server, besides the addresses it listens on and \
               localhost.",
        flag: None,
        set: |c, _, v, _| value::list(v).map(|x| c.web.allowed_hosts = x),
    },
    Key {
        path: "push.enabled",
        kind: Kind::Switch,
        default: "true",
        optional: false,
        help: "Take events over HTTP.",
        flag: None,
        set: |c, _, v, _| value::switch(v).map(|x| c.push.enabled = x),
    },
    Key {
        path: "push.token_file",
        kind: Kind::Text,
        default: r#""push.token""#,
        optional: true,
        help: "File with the bearer token that a push has to carry.",
        flag: None,
        set: |c, _, v, home| value::path(v, home).map(|x| c.push.token_file = Some(x)),
    },
    Key {
        path: "push.allow_builtin_sources",
        kind: Kind::Switch,
        default: "false",
        optional: false,
        help: "Let pushed events name a built-in source as theirs.",
        flag: None,
        set: |c, _, v, _| value::switch(v).map(|x| c.push.allow_builtin_sources = x),
    },
    Key {
        path: "push.max_body_bytes",
        kind: Kind::Number,
        default: "8388608",
        optional: false,
        help: "Longest body of a push, unpacked.",
        flag: None,
        set: |c, _, v, _| value::number(v, 1024).map(|x| c.push.max_body_bytes = x),
    },
    Key {
        path: "notify.listen_address",
        kind: Kind::Text,
        default: r#""127.0.0.1:10078""#,
        optional: false,
        help: "Address at which the command notify takes webhooks of Alertmanager. Those of other machines are taken \
               only with web.allow_remote.",
        flag: Some("notify.listen-address"),
        set: |c, _, v, _| super::address(v).map(|x| c.notify.listen_address = x),
    },
    Key {
        path: "notify.per_minute",
        kind: Kind::Number,
        default: "6",
        optional: false,
        help: "Desktop notifications a minute; alerts beyond it are summed up in the next one.",
        flag: Some("notify.per-minute"),
        set: |c, _, v, _| value::number(v, 1).map(|x| c.notify.per_minute = x),
    },
    Key {
        path: "notify.burst",
        kind: Kind::Number,
        default: "3",
        optional: false,
        help: "Desktop notifications at once after a time without any.",
        flag: Some("notify.burst"),
        set: |c, _, v, _| value::number(v, 1).map(|x| c.notify.burst = x),
    },
    Key {
        path: "runners.tests",
        kind: Kind::List,
        default: "[]",
        optional: false,
        help: "Commands that run tests, each a command word with its leading arguments (\"make verify\"); they are \
               added to the built-in ones.",
        flag: None,
        set: |c, _, v, _| value::list(v).map(|x| c.runners.tests = x),
    },
    Key {
        path: "runners.builds",
        kind: Kind::List,
        default: "[]",
        optional: false,
        help: "Commands that build, likewise.",
        flag: None,
        set: |c, _, v, _| value::list(v).map(|x| c.runners.builds = x),
    },
    Key {
        path: "otlp.endpoint",
        kind: Kind::Text,
        default: r#""http://127.0.0.1:4318""#,
        optional: true,
        help: "Collector that spans and events are sent to by OTLP, unless OTEL_EXPORTER_OTLP_ENDPOINT names one. \
               Without an endpoint nothing is sent.",
        flag: None,
        set: |c, _, v, _| value::text(v).map(|x| c.otlp.endpoint = Some(x.to_owned())),
    },
    Key {
        path: "otlp.spool_max_items",
        kind: Kind::Number,
        default: "200000",
        optional: false,
        help: "Spans and events that wait on disk while the collector cannot be reached; beyond it the oldest are \
               dropped. OTEL_BSP_MAX_QUEUE_SIZE goes before it.",
        flag: None,
        set: |c, _, v, _| value::number(v, 1).map(|x| c.otlp.spool_max_items = x),
    },
    Key {
        path: "otlp.spool_max_bytes",
        kind: Kind::Number,
        default: "268435456",
        optional: false,
        help: "Bytes of them.",
        flag: None,
        set: |c, _, v, _| value::number(v, 1024).map(|x| c.otlp.spool_max_bytes = x),
    },
    Key {
        path: "otlp.own_traces",
        kind: Kind::Switch,
        default: "false",
        optional: false,
        help: "Trace the exporter itself too: its commits, scrapes and batches, under a scope of their own.",
        flag: None,
        set: |c, _, v, _| value::switch(v).map(|x| c.otlp.own_traces = x),
    },
    threshold(
        "thresholds.progressing_seconds",
        "300",
        "A session that progressed this lately is progressing.",
    ),
    threshold(
        "thresholds.silent_seconds",
        "600",
        "Silence that nothing excuses after which a session is stalled.",
    ),
    threshold(
        "thresholds.call_stuck_seconds",
        "7200",
        "Age of a call in flight at which a session is stalled.",
    ),
    threshold(
        "thresholds.no_progress_seconds",
        "2700",
        "Time without progress after which an active session is stalled, if one of the next two holds.",
    ),
    threshold("thresholds.no_progress_calls", "60", "Calls since progress that it takes for that."),
    threshold("thresholds.no_progress_turns", "20", "Or turns since progress."),
    threshold(
        "thresholds.loop_calls",
        "20",
        "Calls since progress that it takes for each of the loops below.",
    ),
    threshold(
        "thresholds.spinning_window",
        "30",
        "An active session spins if at least so many of its last 60 calls are since progress and enough of them \
         bring nothing new.",
    ),
    threshold("thresholds.spinning_percent", "60", "How many percent are enough for that."),
    threshold("thresholds.repeating_errors", "10", "It repeats an error if so many in a row are the same."),
    threshold(
        "thresholds.slow_loop_repeats",
        "20",
        "It loops slowly if one call was repeated so often and brought nothing new.",
    ),
    threshold(
        "thresholds.active_seconds",
        "900",
        "A session without work for longer is not taken for active.",
    ),
    threshold("thresholds.step_entries", "4", "Entries of one step since progress that make a loop."),
    threshold(
        "thresholds.unknown_seconds",
        "21600",
        "Silence of an open turn after which its state is unknown.",
    ),
    threshold("thresholds.unknown_waiting_seconds", "86400", "The same while a person has to act."),
    threshold(
        "thresholds.probable_seconds",
        "60",
        "Age of an escalated call without output that is probably a dialog.",
    ),
    threshold("thresholds.probable_edit_seconds", "20", "Age of an open edit that is probably a dialog."),
    threshold("thresholds.background_seconds", "600", "How long background tasks hold the end of a turn."),
    threshold(
        "thresholds.final_message_seconds",
        "600",
        "Silence after a final message that ends a session whose source tells no ends.",
    ),
];

/// The keys of this source: those of files or those of servers.
pub fn source_keys(source: &str) -> impl Iterator<Item = &'static Key<Source>> {
    let def = LIST.iter().find(|def| def.name == source);
    let of_servers = def.is_some_and(|def| def.live.is_some());
    SOURCE_KEYS.iter().filter(move |key| match key.path {
        "enabled" => true,
        "roots" => !of_servers,
        _ => of_servers,
    })
}

/// The keys of any `[sources.<name>]`; [`source_keys`] says which of them a source has.
pub const SOURCE_KEYS: &[Key<Source>] = &[
    Key {
        path: "enabled",
        kind: Kind::Switch,
        default: "true",
        optional: true,
        help: "Whether it runs.",
        flag: None,
        set: |s, _, v, _| value::switch(v).map(|x| s.enabled = Some(x)),
    },
    Key {
        path: "roots",
        kind: Kind::List,
        default: "[]",
        optional: false,
        help: "Folders of the agent to read besides those below home.",
        flag: None,
        set: |s, _, v, home| value::paths(v, home).map(|x| s.roots = x),
    },
    Key {
        path: "servers",
        kind: Kind::List,
        default: "[]",
        optional: false,
        help: "Servers of the agent (\"http://127.0.0.1:4096\"). Where none is named, the usual ones of this machine \
               are looked for.",
        flag: None,
        set: |s, _, v, _| super::places(v).map(|x| s.live.servers = x),
    },
    Key {
        path: "servers_file",
        kind: Kind::Text,
        default: r#""~/servers.json""#,
        optional: true,
        help: "JSON file that lists servers, flat or nested; it is read again when it changes.",
        flag: None,
        set: |s, _, v, home| value::path(v, home).map(|x| s.live.servers_file = Some(x)),
    },
    Key {
        path: "username",
        kind: Kind::Text,
        default: r#""opencode""#,
        optional: true,
        help: "User name at the servers.",
        flag: None,
        set: |s, _, v, _| value::text(v).map(|x| s.live.login.username = Some(x.to_owned())),
    },
    Key {
        path: "password_file",
        kind: Kind::Text,
        default: r#""~/opencode.password""#,
        optional: true,
        help: "File with the password for it.",
        flag: None,
        set: |s, _, v, home| value::path(v, home).map(|x| s.live.login.password_file = Some(x)),
    },
    Key {
        path: "token_file",
        kind: Kind::Text,
        default: r#""~/openfox.token""#,
        optional: true,
        help: "File with a token for servers that take one.",
        flag: None,
        set: |s, _, v, home| value::path(v, home).map(|x| s.live.login.token_file = Some(x)),
    },
    Key {
        path: "ca_file",
        kind: Kind::Text,
        default: r#""~/ca.pem""#,
        optional: true,
        help: "Certificates to believe for https servers, besides those of the system.",
        flag: None,
        set: |s, _, v, home| value::path(v, home).map(|x| s.live.trust.ca_file = Some(x)),
    },
];

const fn threshold(path: &'static str, default: &'static str, help: &'static str) -> Key {
    let set = |c: &mut Config, key: &Key, v: &Value, _: Option<&str>| {
        value::number(v, 1).map(|n| {
            c.thresholds.insert(key.name(), n);
        })
    };
    Key { path, kind: Kind::Number, default, optional: false, help, flag: None, set }
}

// === impl Key ===

impl<T> Key<T> {
    /// The table it stands in, empty at the top, and its name there.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.path.rsplit_once('.').unwrap_or(("", self.path))
    }

    /// Its name without the table.
    pub fn name(&self) -> &'static str {
        self.parts().1
    }
}

/// The variable of this path.
pub fn variable(path: &str) -> String {
    format!("{ENV_PREFIX}{}", path.replace('.', "_").to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn paths_flags_and_variables_are_unique() {
        let unique = |names: Vec<String>| names.iter().collect::<BTreeSet<_>>().len() == names.len();
        assert!(unique(KEYS.iter().map(|k| k.path.to_owned()).collect()));
        assert!(unique(KEYS.iter().filter_map(|k| k.flag.map(str::to_owned)).collect()));
        assert!(unique(KEYS.iter().map(|k| variable(k.path)).chain([variable(CONFIG_FILE)]).collect()));
    }

    #[test]
    fn a_table_is_written_in_one_piece_and_the_top_comes_first() {
        let mut tables: Vec<_> = KEYS.iter().map(|k| k.parts().0).collect();
        assert_eq!(tables.first(), Some(&""));
        tables.dedup();
        assert_eq!(tables.iter().collect::<BTreeSet<_>>().len(), tables.len(), "{tables:?}");
    }

    #[test]
    fn flags_are_spelled_as_their_keys() {
        for key in KEYS {
            let Some(flag) = key.flag else { continue };
            let spelled = |text: &str| text.replace(['.', '-'], "_");
            assert!(flag == "log.level" || spelled(flag) == spelled(key.path), "{flag}, {}", key.path);
        }
    }

    #[test]
    fn help_is_whole_sentences() {
        let texts = KEYS.iter().map(|k| k.help).chain(SOURCE_KEYS.iter().map(|k| k.help));
        for help in texts {
            assert!(help.ends_with('.') && help.starts_with(char::is_uppercase), "{help}");
        }
    }
}
