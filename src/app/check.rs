//! `check`: what the configuration says, what was found on this machine, and what each source can see.

use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::event::Capability;
use crate::sources::live;
use crate::sources::live::{Configured, LiveSource};
use crate::sources::{LIST, SourceDef};
use crate::spans::Signal;

/// The report. A wrong configuration has been refused before.
///
/// # Errors
/// None of its own; the signature is that of every command.
pub fn check(config: Config) -> anyhow::Result<String> {
    let mut out = String::from("configuration: ok\n");
    out.push_str(&format!(
        "state folder: {} ({})\n",
        config.state_dir.display(),
        presence(&config.state_dir)
    ));
    for address in &config.web.listen_address {
        out.push_str(&format!("listens on: {address}\n"));
    }
    for line in otlp(&config) {
        out.push_str(&line);
        out.push('\n');
    }
    for line in sources(&config, true) {
        out.push_str(&line);
        out.push('\n');
    }
    for def in LIST {
        let can = |c: &&Capability| def.capabilities.has(**c);
        let words = |list: Vec<&Capability>| list.iter().map(|c| c.as_str()).collect::<Vec<_>>().join(", ");
        let sees = words(Capability::ALL.iter().filter(can).collect());
        let some = |c: &&Capability| def.of_some.has(**c);
        let of_some = words(Capability::ALL.iter().filter(some).collect());
        let blind = words(Capability::ALL.iter().filter(|c| !can(c) && !some(c)).collect());
        out.push_str(&format!("{}: sees {sees}", def.name));
        if !of_some.is_empty() {
            out.push_str(&format!("; of some sessions {of_some}"));
        }
        if !blind.is_empty() {
            out.push_str(&format!("; cannot see {blind}"));
        }
        out.push('\n');
    }
    Ok(out)
}

/// Where spans, events and metrics would go.
fn otlp(config: &Config) -> Vec<String> {
    let settings = &config.otlp.settings;
    let mut lines: Vec<String> = Signal::ALL
        .iter()
        .filter_map(|s| Some(format!("otlp: {} to {}", s.as_str(), settings.target(*s)?)))
        .collect();
    if lines.is_empty() {
        lines.push("otlp: nothing is sent".to_owned());
    }
    lines.extend(settings.ignored.iter().map(|what| format!("otlp: {what}")));
    lines
}

/// One line per source: whether it is on and what is there for it; `probed`: servers are asked.
pub(super) fn sources(config: &Config, probed: bool) -> Vec<String> {
    LIST.iter().map(|def| source(def, config, probed)).collect()
}

/// Asks the servers of a source whether they are there.
fn probe(live: &'static LiveSource, configured: &Configured) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(live::probe(live, configured)),
        Err(e) => vec![format!("cannot be asked: {e}")],
    }
}

fn source(def: &SourceDef, config: &Config, probed: bool) -> String {
    if !config.enabled(def.name, def.default_on) {
        return format!("{}: off", def.name);
    }
    if let Some(live) = def.live {
        let configured = config.live(def.name);
        if !probed {
            let named = configured.servers.iter().map(|place| place.endpoint().as_str().to_owned());
            let file = configured.servers_file.iter().map(|path| path.display().to_string());
            let mut places: Vec<String> = named.chain(file).collect();
            if places.is_empty() {
                places = live.servers.iter().map(|server| format!("{server} if it is there")).collect();
            }
            return format!("{}: on, {}", def.name, places.join(", "));
        }
        return format!("{}: on, {}", def.name, probe(live, &configured).join(", "));
    }
    if def.start.is_none() {
        return format!("{}: on, {}", def.name, def.about);
    }
    if def.looks_at.is_empty() && config.roots(def.name).is_empty() {
        return format!("{}: on, no folders are named in sources.{}.roots", def.name, def.name);
    }
    // Some are looked for in every home, others only where they are said to be.
    let homes = config.home.iter().filter(|_| !def.looks_at.is_empty());
    let below_home = homes.map(|home| home.join(def.looks_at));
    let folders: Vec<PathBuf> = below_home.chain(config.roots(def.name).iter().cloned()).collect();
    let places: Vec<String> = folders.iter().map(|f| format!("{} ({})", f.display(), presence(f))).collect();
    format!("{}: on, {}", def.name, places.join(", "))
}

fn presence(path: &Path) -> &'static str {
    match std::fs::metadata(path) {
        Ok(_) => "found",
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => "nothing there yet",
        Err(_) => "cannot be read",
    }
}
