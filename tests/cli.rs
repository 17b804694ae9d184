//! The command line from outside: what is called with which configuration, and the exit codes.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::cell::RefCell;
use std::collections::BTreeMap;

use agent_session_exporter::cli::{self, Commands, Failure};
use agent_session_exporter::config::Config;
use agent_session_exporter::docs::FamilyDoc;

thread_local! {
    /// What was called in this thread, and with what.
    static CALLED: RefCell<Vec<(String, Config)>> = const { RefCell::new(Vec::new()) };
}

fn called(name: &str, config: Config) {
    CALLED.with_borrow_mut(|calls| calls.push((name.to_owned(), config)));
}

/// Runs a command line; gives what was called and what was printed.
fn run(line: &str) -> Result<(Vec<(String, Config)>, String), Failure> {
    CALLED.with_borrow_mut(Vec::clear);
    let commands = Commands {
        serve: |c| {
            called("serve", c);
            Ok(())
        },
        demo: |c| {
            called("demo", c);
            Ok(())
        },
        once: |c, output| {
            called(&format!("once {output:?}"), c);
            Ok(())
        },
        replay: |c, wanted| {
            called(&format!("replay {wanted:?}"), c);
            Ok(())
        },
        notify: |c| {
            called("notify", c);
            Ok(())
        },
        notify_test: |_| Ok("sent\n".to_owned()),
        check: |_| anyhow::bail!("the state folder cannot be written to"),
        families: || {
            vec![FamilyDoc {
                name: "agent_sessions".to_owned(),
                kind: "gauge",
                help: "Sessions by state.".to_owned(),
                labels: vec!["state".to_owned()],
                stability: "experimental",
                group: "Aggregates",
            }]
        },
        sources: vec!["codex", "push"],
    };
    let args = std::iter::once("agent-session-exporter").chain(line.split_whitespace()).map(Into::into);
    let env = BTreeMap::from([("HOME".to_owned(), "/home/dev".to_owned())]);
    let mut out = Vec::new();
    cli::run(args, env, &commands, &mut out)?;
    Ok((CALLED.take(), String::from_utf8(out).unwrap()))
}

/// Runs a line that calls one command.
fn one(line: &str) -> (String, Config) {
    let (mut calls, out) = run(line).unwrap_or_else(|e| panic!("{line}: {e:?}"));
    assert_eq!((calls.len(), out.as_str()), (1, ""), "{line}");
    calls.remove(0)
}

#[test]
fn serving_is_the_default() {
    assert_eq!(one("").0, "serve");
    assert_eq!(one("serve").0, "serve");
    assert_eq!(one("demo").0, "demo");
    assert_eq!(one("once").0, "once None");
    assert_eq!(one("once --output /tmp/x.prom").0, "once Some(\"/tmp/x.prom\")");
}

#[test]
fn notifications_are_a_command_of_their_own() {
    let (name, config) =
        one("notify --notify.per-minute 12 --notify.burst 2 --notify.listen-address localhost:7");
    assert_eq!(name, "notify");
    assert_eq!((config.notify.per_minute, config.notify.burst), (12, 2));
    assert_eq!(config.notify.listen_address.to_string(), "127.0.0.1:7");
    assert_eq!(one("notify").1.notify.listen_address.to_string(), "127.0.0.1:10078");
    assert_eq!(run("notify --test").unwrap().1, "sent\n");
}

#[test]
fn flags_stand_before_or_after_the_command() {
    for line in
        ["--max-sessions 5 serve", "serve --max-sessions=5", "--max-sessions 5", "demo --max-sessions 5"]
    {
        assert_eq!(one(line).1.max_sessions, 5, "{line}");
    }
}

#[test]
fn every_documented_flag_is_taken() {
    let (_, c) =
        one("--home /a --home /b --history.max-age 1h --state-dir /s --series off --max-sessions 5 \
                      --max-tracked 9 --stdin --web.listen-address 0.0.0.0:1 --web.listen-address [::1]:2 \
                      --web.telemetry-path /m --web.allow-remote --log.level debug");
    assert_eq!(c.home.len(), 2);
    assert_eq!(c.history_max_age.as_secs(), 3600);
    assert_eq!((c.series.as_str(), c.max_sessions, c.max_tracked), ("off", 5, 9));
    assert_eq!((c.web.listen_address.len(), c.web.telemetry_path.as_str(), c.log), (2, "/m", "debug"));
    assert!(c.stdin && c.web.allow_remote);
    assert!(!one("--stdin=false").1.stdin);
}

#[test]
fn exit_codes_tell_usage_from_failure() {
    let code = |line: &str| run(line).map_or_else(|e| e.code(), |_| 0);
    assert_eq!(code("--help"), 0);
    assert_eq!(code("--version"), 0);
    assert_eq!(code("--no-such-flag"), 2);
    assert_eq!(code("no-such-command"), 2);
    assert_eq!(code("docs"), 2, "a topic is needed");
    assert_eq!(code("--series nothing"), 2);
    assert_eq!(code("--config.file /nonexistent.toml"), 2);
    assert_eq!(code("check"), 1);
}

#[test]
fn documentation_is_printed() {
    let printed = |line: &str| run(line).unwrap().1;
    assert!(printed("docs metrics").contains("`agent_sessions`"));
    assert!(printed("docs config").contains("[web]"));
    assert!(printed("docs flags").contains("`--state-dir`"));
    assert!(printed("docs sources").starts_with("| source |"));
    assert!(printed("man").contains("agent\\-session\\-exporter"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(printed(&format!("completions {shell}")).contains("web.listen-address"), "{shell}");
    }
}

#[test]
fn help_names_default_and_variable() {
    let Err(Failure::Usage(help)) = run("--help") else { panic!("no help") };
    let help = help.to_string();
    assert!(
        help.contains("[default: 127.0.0.1:10077] [env: AGENT_SESSION_EXPORTER_WEB_LISTEN_ADDRESS]"),
        "{help}"
    );
}
