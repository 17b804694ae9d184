//! Exit codes, nothing else.

use std::process::ExitCode;

use agent_session_exporter::app;
use agent_session_exporter::cli::{self, Commands};
use agent_session_exporter::sources;

fn main() -> ExitCode {
    let commands = Commands {
        serve: app::serve,
        demo: app::demo,
        once: app::once,
        replay: app::replay,
        check: app::check,
        notify: app::notify,
        notify_test: app::notify_test,
        families: app::families,
        sources: sources::LIST.iter().map(|s| s.name).collect(),
    };
    let env = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect();
    match cli::run(std::env::args_os(), env, &commands, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report();
            ExitCode::from(failure.code())
        }
    }
}
