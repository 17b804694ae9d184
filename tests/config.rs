//! The configuration from outside: layers, problems, agreement with the limits of derived states.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use agent_session_exporter::config::{Config, Inputs, KEYS, Problems, SOURCE_KEYS, Series, source_keys};
use agent_session_exporter::session::Thresholds;
use agent_session_exporter::{docs, sources};

/// Inputs of a user whose home is /home/dev.
fn inputs(flags: &[(&str, &str)], env: &[(&str, &str)]) -> Inputs {
    let mut variables = BTreeMap::from([("HOME".to_owned(), "/home/dev".to_owned())]);
    variables.extend(env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    Inputs {
        flags: flags.iter().map(|(k, v)| ((*k).to_owned(), vec![(*v).to_owned()])).collect(),
        env: variables,
        sources: ["codex", "push"].into_iter().chain(sources::LIST.iter().map(|s| s.name)).collect(),
    }
}

/// The same with a file of this content.
fn with_file(content: &str, flags: &[(&str, &str)], env: &[(&str, &str)]) -> Result<Config, Problems> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    let mut inputs = inputs(flags, env);
    inputs.flags.push(("config.file".to_owned(), vec![file.path().to_str().unwrap().to_owned()]));
    Config::load(&inputs)
}

/// The problems of a file, each as place without the file's name, and text.
fn problems(content: &str) -> Vec<(String, String)> {
    let found = with_file(content, &[], &[]).expect_err(content).0;
    found.into_iter().map(|p| (p.place.split(" in ").next().unwrap().to_owned(), p.what)).collect()
}

#[test]
fn without_anything_the_defaults_hold() {
    let c = Config::load(&inputs(&[], &[])).unwrap();
    assert_eq!(c.home, [PathBuf::from("/home/dev")]);
    assert_eq!(c.state_dir, PathBuf::from("/home/dev/.local/state/agent-session-exporter"));
    assert_eq!(c.history_max_age.as_secs(), 7 * 86_400);
    assert_eq!((c.series, c.max_sessions, c.max_tracked, c.stdin), (Series::Full, 1000, 50_000, false));
    assert_eq!(c.web.listen_address, ["127.0.0.1:10077".parse().unwrap()]);
    assert_eq!(c.web.telemetry_path, "/metrics");
    assert!(!c.web.allow_remote && c.push.enabled && !c.push.allow_builtin_sources);
    assert_eq!(c.push.max_body_bytes, 8 << 20);
    assert!(c.enabled("codex", true) && !c.enabled("codex", false) && c.enabled("push", true));
    assert!(c.roots("codex").is_empty());
}

#[test]
fn the_default_thresholds_are_those_of_the_derived_states() {
    let c = Config::load(&inputs(&[], &[])).unwrap();
    assert_eq!(c.thresholds::<Thresholds>().unwrap(), Thresholds::default());
    let fields = serde_json::to_value(Thresholds::default()).unwrap();
    let keys = KEYS.iter().filter(|k| k.parts().0 == "thresholds");
    let declared: BTreeMap<_, _> =
        keys.map(|k| (k.name().to_owned(), k.default.parse::<serde_json::Value>().unwrap())).collect();
    assert_eq!(serde_json::to_value(declared).unwrap(), fields);
}

#[test]
fn a_threshold_reaches_the_derived_states() {
    let c = with_file("[thresholds]\nsilent_seconds = 5", &[], &[]).unwrap();
    let expected = Thresholds { silent_seconds: 5, ..Thresholds::default() };
    assert_eq!(c.thresholds::<Thresholds>().unwrap(), expected);
}

#[test]
fn flags_win_over_variables_and_variables_over_the_file() {
    let file = "max_sessions = 1\nmax_tracked = 70\nseries = \"off\"\nlog = \"warn\"";
    let env = [("AGENT_SESSION_EXPORTER_MAX_SESSIONS", "2"), ("AGENT_SESSION_EXPORTER_SERIES", "all")];
    let c = with_file(file, &[("max-sessions", "3")], &env).unwrap();
    assert_eq!((c.max_sessions, c.series, c.log, c.max_tracked), (3, Series::All, "warn", 70));
}

#[test]
fn the_file_may_be_named_by_a_variable() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "max_sessions = 7").unwrap();
    let name = file.path().to_str().unwrap();
    let c = Config::load(&inputs(&[], &[("AGENT_SESSION_EXPORTER_CONFIG_FILE", name)])).unwrap();
    assert_eq!(c.max_sessions, 7);
}

#[test]
fn variables_reach_tables_lists_and_sources() {
    let env = [
        ("AGENT_SESSION_EXPORTER_WEB_LISTEN_ADDRESS", "127.0.0.1:1, [::1]:2"),
        ("AGENT_SESSION_EXPORTER_PUSH_ENABLED", "false"),
        ("AGENT_SESSION_EXPORTER_SOURCES_CODEX_ROOTS", "~/a,/b"),
        ("CODEX_HOME", "/srv/codex"),
        ("XDG_STATE_HOME", "/srv/state"),
    ];
    let c = Config::load(&inputs(&[], &env)).unwrap();
    assert_eq!(c.web.listen_address, ["127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()]);
    assert!(!c.enabled("push", true));
    assert_eq!(c.roots("codex"), ["/home/dev/a", "/b", "/srv/codex"].map(PathBuf::from));
    assert_eq!(c.state_dir, PathBuf::from("/srv/state/agent-session-exporter"));
}

#[test]
fn a_source_is_switched_and_given_roots_by_the_file() {
    let c = with_file("[sources.codex]\nenabled = false\nroots = [\"~/x\"]", &[], &[]).unwrap();
    assert!(!c.enabled("codex", true));
    assert_eq!(c.roots("codex"), [PathBuf::from("/home/dev/x")]);
    assert!(with_file("[sources.codex]\n[web]\n[sources]", &[], &[]).is_ok(), "empty tables say nothing");
}

#[test]
fn servers_of_a_source_are_read_and_belong_to_sources_that_have_some() {
    let text = "[sources.opencode]\nservers = [\"http://127.0.0.1:4096\", \"https://box/oc/\"]\n\
                servers_file = \"~/servers.json\"\nusername = \"me\"\npassword_file = \"/p\"\nca_file = \"/ca.pem\"\n\
                [sources.openfox]\ntoken_file = \"~/token\"";
    let c = with_file(text, &[], &[]).unwrap();
    let live = c.live("opencode");
    let bases: Vec<String> = live.servers.iter().map(|place| place.base()).collect();
    assert_eq!(bases, ["http://127.0.0.1:4096", "https://box:443/oc"]);
    assert_eq!(live.servers_file, Some(PathBuf::from("/home/dev/servers.json")));
    assert_eq!(
        (live.login.username.as_deref(), live.login.password_file),
        (Some("me"), Some(PathBuf::from("/p")))
    );
    assert_eq!(live.trust.ca_file, Some(PathBuf::from("/ca.pem")));
    assert_eq!(c.live("openfox").login.token_file, Some(PathBuf::from("/home/dev/token")));
    assert!(c.live("gobby").servers.is_empty());

    let wrong = "[sources.codex]\nservers = [\"http://a\"]\n[sources.gobby]\nroots = [\"/x\"]\n\
                 [sources.opencode]\nservers = [\"http://me:secret-planted@host:1\"]";
    let found: BTreeMap<_, _> = problems(wrong).into_iter().collect();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().any(|(place, what)| place.contains("opencode") && what.contains("password_file")));
    assert!(!format!("{found:?}").contains("planted"), "a password is not repeated: {found:?}");
}

#[test]
fn all_problems_are_told_at_once_with_their_places() {
    let file = "max_sesions = 5\nmax_tracked = -1\nseries = \"some\"\nhistory_max_age = 7\nhome = []\n\
                [web]\nlisten_address = [\"nowhere\"]\n[sources.codx]\nenabled = true\n\
                [sources.codex]\nenabeld = true\n[sources.push]\nenabled = true\n[thresholds]\nsilent_seconds = 0";
    let found: BTreeMap<_, _> = problems(file).into_iter().collect();
    let says = |place: &str, text: &str| {
        let what = found.get(place).unwrap_or_else(|| panic!("nothing about {place}: {found:?}"));
        assert!(what.contains(text), "{place}: {what}");
    };
    says("max_sesions", "did you mean max_sessions?");
    says("max_tracked", "whole number, at least 1");
    says("series", "one of full, all, attention, off");
    says("history_max_age", "\"7d\"");
    says("home", "at least one folder");
    says("web.listen_address", "127.0.0.1:10077");
    says("sources.codx.enabled", "did you mean codex?");
    says("sources.codex.enabeld", "did you mean enabled?");
    says("sources.push.enabled", "[push]");
    says("thresholds.silent_seconds", "at least 1");
    assert_eq!(found.len(), 10, "{found:?}");
}

#[test]
fn problems_of_several_layers_come_together() {
    let env = [("AGENT_SESSION_EXPORTER_STDIN", "maybe"), ("AGENT_SESSION_EXPORTER_MAX_SESSION", "1")];
    let text = with_file("colour = 1", &[("max-tracked", "x")], &env).unwrap_err().to_string();
    assert!(text.starts_with("4 problems"), "{text}");
    for part in [
        "colour in ",
        "AGENT_SESSION_EXPORTER_STDIN: expected true or false",
        "did you mean AGENT_SESSION_EXPORTER_MAX_SESSIONS?",
        "--max-tracked: expected a whole number",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn a_broken_or_missing_file_is_told_with_its_line() {
    let text = with_file("home = [\"/a\"]\nseries = ", &[], &[]).unwrap_err().to_string();
    assert!(text.contains(":2: "), "{text}");
    let missing = Config::load(&inputs(&[("config.file", "/nonexistent/x.toml")], &[])).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/x.toml: cannot be read"), "{missing}");
}

#[test]
fn other_machines_are_served_only_when_allowed() {
    for remote in ["0.0.0.0:10077", "[::]:10077", "192.0.2.1:80", ":10077"] {
        let refused = Config::load(&inputs(&[("web.listen-address", remote)], &[])).unwrap_err().to_string();
        assert!(refused.contains("--web.allow-remote"), "{remote}: {refused}");
        let flags = [("web.listen-address", remote), ("web.allow-remote", "true")];
        assert!(Config::load(&inputs(&flags, &[])).is_ok(), "{remote}");
    }
    for local in ["127.0.0.1:0", "[::1]:10077", "localhost:10077"] {
        assert!(Config::load(&inputs(&[("web.listen-address", local)], &[])).is_ok(), "{local}");
    }
}

#[test]
fn a_web_configuration_takes_the_place_of_leave() {
    let flags = [("web.listen-address", "0.0.0.0:10077"), ("web.config.file", "web.yml")];
    assert!(Config::load(&inputs(&flags, &[])).is_ok());
}

#[test]
fn the_metrics_keep_off_other_routes() {
    for bad in ["", "/", "metrics", "/api/x", "/-/ready", "/a b", "/a?b", "/{x}"] {
        assert!(Config::load(&inputs(&[("web.telemetry-path", bad)], &[])).is_err(), "{bad}");
    }
    assert!(Config::load(&inputs(&[("web.telemetry-path", "/agents/metrics")], &[])).is_ok());
}

#[test]
fn without_a_home_folder_paths_have_to_be_full() {
    let mut bare = inputs(&[], &[]);
    bare.env.clear();
    let text = Config::load(&bare).unwrap_err().to_string();
    assert!(text.contains("HOME is not set"), "{text}");
    bare.flags = [("home", "/srv"), ("state-dir", "/srv/state")]
        .map(|(k, v)| (k.to_owned(), vec![v.to_owned()]))
        .to_vec();
    let c = Config::load(&bare).unwrap();
    assert_eq!((c.home, c.state_dir), (vec![PathBuf::from("/srv")], PathBuf::from("/srv/state")));
}

#[test]
fn variables_that_kubernetes_sets_are_not_ours() {
    let env = [
        ("AGENT_SESSION_EXPORTER_SERVICE_HOST", "10.0.0.1"),
        ("AGENT_SESSION_EXPORTER_PORT", "tcp://10.0.0.1:10077"),
        ("AGENT_SESSION_EXPORTER_PORT_10077_TCP", "tcp://10.0.0.1:10077"),
    ];
    assert!(Config::load(&inputs(&[], &env)).is_ok());
}

#[test]
fn the_example_file_says_the_defaults() {
    let example = docs::example_config();
    let uncommented: String = example
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with([' ', '#']) => format!("{setting}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    // Optional keys show an example, which is no default.
    let optional = KEYS.iter().filter(|k| k.optional).map(|k| k.name());
    let in_sources = SOURCE_KEYS.iter().filter(|k| k.optional && k.path != "enabled").map(|k| k.name());
    let optional: Vec<_> = optional.chain(in_sources).map(|name| format!("{name} =")).collect();
    let settings: String = uncommented
        .lines()
        .filter(|line| !optional.iter().any(|o| line.starts_with(o)))
        .map(|line| format!("{line}\n"))
        .collect();
    let count = settings.lines().filter(|l| !l.starts_with('#') && l.contains(" = ")).count();
    let named = sources::LIST.iter().filter(|s| s.name != "push");
    let in_sources: usize = named
        .flat_map(|s| source_keys(s.name))
        .filter(|k| !optional.contains(&format!("{} =", k.name())))
        .count();
    assert_eq!(count, KEYS.iter().filter(|k| !k.optional).count() + in_sources, "{settings}");
    let with = with_file(&settings, &[], &[]).unwrap_or_else(|e| panic!("{e}\n{settings}"));
    let mut without = Config::load(&inputs(&[], &[])).unwrap();
    without.sources = with.sources.clone();
    assert_eq!(format!("{with:?}"), format!("{without:?}"));
    assert!(with_file(&example, &[], &[]).is_ok(), "as it is, it changes nothing");
}

#[test]
fn webhooks_of_other_machines_are_taken_only_when_allowed() {
    for remote in ["0.0.0.0:10078", ":10078", "192.0.2.1:80"] {
        let refused =
            Config::load(&inputs(&[("notify.listen-address", remote)], &[])).unwrap_err().to_string();
        assert!(
            refused.contains("notify.listen_address") && refused.contains("--web.allow-remote"),
            "{refused}"
        );
        // What protects the exporter does not protect this.
        let flags = [("notify.listen-address", remote), ("web.config.file", "web.yml")];
        assert!(Config::load(&inputs(&flags, &[])).is_err(), "{remote}");
        let flags = [("notify.listen-address", remote), ("web.allow-remote", "true")];
        assert!(Config::load(&inputs(&flags, &[])).is_ok(), "{remote}");
    }
    let with = |flag, value| Config::load(&inputs(&[(flag, value)], &[])).map(|c| c.notify);
    assert!(with("notify.listen-address", "10078").is_err());
    assert!(with("notify.per-minute", "0").is_err() && with("notify.burst", "0").is_err());
    assert_eq!(with("notify.per-minute", "60").unwrap().per_minute, 60);
}
