//! The arguments of `replay`.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::Failure;
use crate::app::{Moment, Replay, To, duration_ms};

/// Labels that are ours.
const OURS: [&str; 4] = ["source", "project", "session", "le"];

/// Adds the arguments.
pub(super) fn arguments(command: Command) -> Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    command
        .arg(text("format", "SOURCE", "Source of the files: what `docs sources` lists").default_value("push"))
        .arg(text("step", "DURATION", "Time between two scrapes").default_value("15s"))
        .arg(text("from", "TIME", "First scrape: RFC 3339, or +DURATION behind the last record [default: the first record]"))
        .arg(text("until", "TIME", "Last scrape: RFC 3339, or +DURATION behind the last record [default: +15m, but not the future]"))
        .arg(text("label", "NAME=VALUE", "Label of every series, as a scrape would add job and instance").action(ArgAction::Append))
        .arg(text("to", "FORM", "openmetrics for `promtool tsdb create-blocks-from openmetrics`, unit-test for `promtool test rules`")
            .value_parser(["openmetrics", "unit-test"]).default_value("openmetrics"))
        .arg(Arg::new("otlp").long("otlp").action(ArgAction::SetTrue)
            .conflicts_with_all(["step", "from", "until", "label", "to", "rules", "output"])
            .help("Write nothing; send spans and records of steps by OTLP, with the ids they have when they are sent live"))
        .arg(text("rules", "FILE", "Rules that the unit test loads").action(ArgAction::Append))
        .arg(text("output", "FILE", "File to write; without it standard output").value_parser(value_parser!(PathBuf)))
        .arg(Arg::new("file").value_name("FILE").required(true).num_args(1..)
            .help("Recorded files; SOURCE:FILE for one of another source"))
}

/// What they ask for.
pub(super) fn asked(given: &ArgMatches) -> Result<Replay, Failure> {
    let one = |name: &str| given.get_one::<String>(name).cloned();
    let all = |name: &str| given.get_many::<String>(name).into_iter().flatten().cloned().collect::<Vec<_>>();
    let moment = |name: &'static str| {
        one(name).map(|text| Moment::parse(&text).ok_or_else(|| wrong(name, &text))).transpose()
    };
    let step = one("step").unwrap_or_default();
    let labels = all("label").into_iter().map(|text| label(&text).ok_or_else(|| wrong("label", &text)));
    Ok(Replay {
        format: one("format").unwrap_or_default(),
        files: all("file"),
        step_ms: duration_ms(&step).filter(|ms| *ms > 0).ok_or_else(|| wrong("step", &step))?,
        from: moment("from")?,
        until: moment("until")?,
        labels: labels.collect::<Result<_, _>>()?,
        to: match one("to").as_deref() {
            _ if given.get_flag("otlp") => To::Otlp,
            Some("unit-test") => To::UnitTest,
            _ => To::OpenMetrics,
        },
        rules: all("rules"),
        output: given.get_one::<PathBuf>("output").cloned(),
    })
}

fn wrong(argument: &str, value: &str) -> Failure {
    let message = format!("invalid value {value:?} for --{argument}\n");
    Failure::Usage(clap::Error::raw(clap::error::ErrorKind::ValueValidation, message))
}

/// A label that Prometheus takes, and that is none of ours.
fn label(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    let letter = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    let mut bytes = name.bytes();
    let valid = bytes.next().is_some_and(letter) && bytes.all(|b| letter(b) || b.is_ascii_digit());
    (valid && !name.starts_with("__") && !OURS.contains(&name)).then(|| (name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_names_that_are_not_ours() {
        assert_eq!(label("job=a=b"), Some(("job".to_owned(), "a=b".to_owned())));
        for text in ["job", "=x", "9a=x", "session=x", "__name__=x", "a-b=c"] {
            assert_eq!(label(text), None, "{text}");
        }
    }
}
