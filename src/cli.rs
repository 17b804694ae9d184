//! The command line: what can be asked for, turned into a configuration and one call. Flags come from the table of keys.

mod replay;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use crate::app::Replay;
use crate::config::{CONFIG_FILE, Config, Inputs, KEYS, Kind, Problems, variable};
use crate::docs::{self, FamilyDoc};

/// Name of the program.
const NAME: &str = "agent-session-exporter";

/// What the commands do, given by whoever wires the parts.
pub struct Commands {
    /// Serves until it is told to stop.
    pub serve: fn(Config) -> anyhow::Result<()>,
    /// Serves bundled recordings.
    pub demo: fn(Config) -> anyhow::Result<()>,
    /// One scan, its exposition into a file or to standard output.
    pub once: fn(Config, Option<PathBuf>) -> anyhow::Result<()>,
    /// Recordings to what scrapes would have shown of them.
    pub replay: fn(Config, Replay) -> anyhow::Result<()>,
    /// A report on what was found.
    pub check: fn(Config) -> anyhow::Result<String>,
    /// Raises desktop notifications for Alertmanager's webhooks.
    pub notify: fn(Config) -> anyhow::Result<()>,
    /// Raises an example of each; gives what was sent.
    pub notify_test: fn(Config) -> anyhow::Result<String>,
    /// The families there are.
    pub families: fn() -> Vec<FamilyDoc>,
    /// Names of the sources there are.
    pub sources: Vec<&'static str>,
}

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The command line could not be read, or asked for help or the version.
    Usage(clap::Error),
    /// The configuration is wrong.
    Config(Problems),
    /// The command failed.
    Run(anyhow::Error),
}

// === impl Failure ===

impl Failure {
    /// The exit code: 0 for help and version, 2 for usage and configuration, 1 for the rest.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(e) => u8::try_from(e.exit_code()).unwrap_or(2),
            Self::Config(_) => 2,
            Self::Run(_) => 1,
        }
    }

    /// Tells the user.
    pub fn report(&self) {
        match self {
            // Nobody is left to be told where the terminal is gone.
            Self::Usage(e) => drop(e.print()),
            Self::Config(problems) => eprintln!("{NAME}: {problems}"),
            Self::Run(e) => eprintln!("{NAME}: {e:#}"),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(e: anyhow::Error) -> Self {
        Self::Run(e)
    }
}

/// Runs what the arguments ask for; the first of them is the program's name.
///
/// # Errors
/// See [`Failure`].
pub fn run(
    args: impl IntoIterator<Item = OsString>,
    env: BTreeMap<String, String>,
    commands: &Commands,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let matches = command().try_get_matches_from(args).map_err(Failure::Usage)?;
    let (name, sub) = matches.subcommand().unwrap_or(("serve", &matches));
    let written = match name {
        "docs" => {
            let topic = sub.get_one::<String>("topic").map_or("", String::as_str);
            out.write_all(document(topic, commands).as_bytes())
        }
        "completions" => {
            let shell = sub.get_one::<Shell>("shell").copied().unwrap_or(Shell::Bash);
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), NAME, &mut script);
            out.write_all(&script)
        }
        "man" => clap_mangen::Man::new(command()).render(out),
        _ => {
            let mut flags = given(&matches);
            if matches.subcommand().is_some() {
                flags.extend(given(sub));
            }
            let inputs = Inputs { flags, env, sources: commands.sources.clone() };
            let config = Config::load(&inputs).map_err(Failure::Config)?;
            match name {
                "demo" => (commands.demo)(config)?,
                "once" => (commands.once)(config, sub.get_one::<PathBuf>("output").cloned())?,
                "replay" => (commands.replay)(config, replay::asked(sub)?)?,
                "check" => return finish(out.write_all((commands.check)(config)?.as_bytes())),
                "notify" if sub.get_flag("test") => {
                    return finish(out.write_all((commands.notify_test)(config)?.as_bytes()));
                }
                "notify" => (commands.notify)(config)?,
                _ => (commands.serve)(config)?,
            }
            Ok(())
        }
    };
    finish(written)
}

/// A reader that has seen enough (`| head`) is no failure.
fn finish(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Run(e.into())),
        _ => Ok(()),
    }
}

fn document(topic: &str, commands: &Commands) -> String {
    match topic {
        "config" => docs::example_config(),
        "flags" => docs::flags(),
        "sources" => docs::sources(),
        _ => docs::metrics(&(commands.families)()),
    }
}

/// The flags that were given.
fn given(matches: &ArgMatches) -> Vec<(String, Vec<String>)> {
    flag_names()
        .filter_map(|flag| {
            let values: Vec<String> = matches.get_many::<String>(flag)?.cloned().collect();
            Some((flag.to_owned(), values))
        })
        .collect()
}

fn flag_names() -> impl Iterator<Item = &'static str> {
    std::iter::once(CONFIG_FILE).chain(KEYS.iter().filter_map(|k| k.flag))
}

/// The whole command line.
pub fn command() -> Command {
    let flagged = |name: &'static str, about: &'static str| Command::new(name).about(about).args(flags());
    let topics = ["metrics", "config", "flags", "sources"];
    Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Shows whether background coding-agent sessions work, progress, wait for a person, are stuck or have ended")
        .after_help("Without a command it serves.")
        .args(flags())
        .subcommand(flagged("serve", "Find the agents of this machine and serve their sessions (the default)"))
        .subcommand(flagged("demo", "Serve bundled recordings: every state within a minute"))
        .subcommand(flagged("once", "Scan once and write the metrics, for the textfile collector").arg(
            Arg::new("output")
                .long("output")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("File to write, replaced as a whole; without it standard output"),
        ))
        .subcommand(flagged("check", "Check the configuration and tell what was found and what each source can see"))
        .subcommand(replay::arguments(flagged(
            "replay",
            "Turn recorded files into what scrapes of them would have shown, to load into Prometheus or to test rules",
        )))
        .subcommand(flagged("notify", "Take webhooks of Alertmanager and raise desktop notifications").arg(
            Arg::new("test")
                .long("test")
                .action(ArgAction::SetTrue)
                .help("Raise an example of each kind, print what was sent, and end"),
        ))
        .subcommand(
            Command::new("docs")
                .about("Print documentation made from the program's own tables")
                .arg(Arg::new("topic").required(true).value_parser(topics)),
        )
        .subcommand(
            Command::new("completions")
                .about("Print a completion script")
                .arg(Arg::new("shell").required(true).value_parser(value_parser!(Shell))),
        )
        .subcommand(Command::new("man").about("Print the man page"))
}

/// One flag per key that has one.
fn flags() -> Vec<Arg> {
    let file = Arg::new(CONFIG_FILE)
        .long(CONFIG_FILE)
        .value_name("FILE")
        .help(format!("The TOML file to read [env: {}]", variable(CONFIG_FILE)));
    let of_keys = KEYS.iter().filter_map(|key| {
        let flag = key.flag?;
        let default =
            if key.optional { String::new() } else { format!(" [default: {}]", docs::plain(key.default)) };
        let arg = Arg::new(flag).long(flag).help(format!(
            "{}{default} [env: {}]",
            key.help.trim_end_matches('.'),
            variable(key.path)
        ));
        Some(match key.kind {
            Kind::Switch => {
                arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL")
            }
            Kind::List => arg.action(ArgAction::Append).value_name("VALUE"),
            Kind::Number => arg.value_name("N"),
            Kind::Text => arg.value_name("VALUE"),
        })
    });
    std::iter::once(file).chain(of_keys).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }
}
