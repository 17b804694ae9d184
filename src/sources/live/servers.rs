//! Which servers there are: the configured ones, those of a file that lists them, or else the usual ones.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use super::{Configured, LiveSource, Login, Place};

/// Longest file that is read.
const MAX_FILE: u64 = 1 << 20;
/// Servers that are followed.
pub(super) const MAX_SERVERS: usize = 64;
/// How deep addresses are looked for in the file.
const MAX_DEPTH: usize = 8;
/// Names of fields that hold an address.
const ADDRESSES: [&str; 5] = ["url", "baseUrl", "base_url", "baseURL", "server"];

/// One server to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) place: Place,
    pub(super) login: Login,
    /// Whether a person named it: then it is down when it does not answer. Others are merely not there.
    pub(super) configured: bool,
}

/// What changed with the file of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    Same,
    /// There is a new list.
    New,
    /// There is a list, but not everything in it that should be an address is one.
    Partly,
    /// The file cannot be read as one; the last list stays.
    Broken,
}

/// The list of servers of one source.
pub(super) struct Servers {
    fixed: Vec<Server>,
    file: Option<PathBuf>,
    login: Login,
    /// What the file looked like when it was read last.
    stat: Option<(SystemTime, u64)>,
    listed: Vec<Server>,
}

// === impl Servers ===

impl Servers {
    pub(super) fn new(source: &LiveSource, configured: &Configured) -> Self {
        let server = |place: Place, configured_by_hand| Server {
            place,
            login: configured.login.clone(),
            configured: configured_by_hand,
        };
        let named = configured.servers.iter().map(|place| server(place.clone(), true));
        let usual = source.servers.iter().filter_map(|text| Place::parse(text).ok());
        // A person who names servers means those.
        let alone = configured.servers.is_empty() && configured.servers_file.is_none();
        let fixed = if alone { usual.map(|p| server(p, false)).collect() } else { named.collect() };
        Self {
            fixed,
            file: configured.servers_file.clone(),
            login: configured.login.clone(),
            stat: None,
            listed: Vec::new(),
        }
    }

    /// Looks at the file again.
    pub(super) fn look(&mut self) -> Change {
        let Some(path) = &self.file else { return Change::Same };
        let meta = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
        let stat = meta.as_ref().and_then(|m| Some((m.modified().ok()?, m.len())));
        if stat.is_some() && stat == self.stat {
            return Change::Same;
        }
        let known_to_be_missing = stat.is_none() && self.stat.is_none();
        let first = self.stat.is_none();
        self.stat = stat;
        // Not there yet is no fault; gone, after it was there, may be a moment between two versions.
        if known_to_be_missing {
            return Change::Same;
        }
        match read(path).and_then(|text| listed(&text)) {
            Some((places, wrong)) => {
                let server = |place| Server { place, login: self.login.clone(), configured: true };
                let listed: Vec<Server> = places.into_iter().map(server).collect();
                let change = match listed == self.listed && !first {
                    _ if wrong => Change::Partly,
                    true => Change::Same,
                    false => Change::New,
                };
                self.listed = listed;
                change
            }
            None => Change::Broken,
        }
    }

    /// Every server to follow, each once.
    pub(super) fn wanted(&self) -> Vec<Server> {
        let mut wanted: Vec<Server> = Vec::new();
        for server in self.fixed.iter().chain(&self.listed) {
            if !wanted.iter().any(|known| known.place == server.place) && wanted.len() < MAX_SERVERS {
                wanted.push(server.clone());
            }
        }
        wanted
    }
}

fn read(path: &Path) -> Option<String> {
    let long = std::fs::metadata(path).ok()?.len() > MAX_FILE;
    if long { None } else { std::fs::read_to_string(path).ok() }
}

/// Addresses in a list of servers, in whatever form: texts, objects with `url` (or `host` and `port`), lists and
/// objects of these, with whether something that should be an address is none. `None` if it is no JSON, or nothing in
/// it is an address that should be one.
fn listed(text: &str) -> Option<(Vec<Place>, bool)> {
    let value: Value = serde_json::from_str(text).ok()?;
    if !(value.is_array() || value.is_object()) {
        return None;
    }
    let mut places = Vec::new();
    let mut wrong = false;
    collect(&value, 0, &mut places, &mut wrong);
    if wrong && places.is_empty() { None } else { Some((places, wrong)) }
}

fn collect(value: &Value, depth: usize, out: &mut Vec<Place>, wrong: &mut bool) {
    if depth > MAX_DEPTH || out.len() >= MAX_SERVERS {
        return;
    }
    let mut address = |text: &str| match Place::parse(text) {
        Ok(place) if !out.contains(&place) => out.push(place),
        Ok(_) => {}
        Err(_) => *wrong = true,
    };
    match value {
        Value::String(text) => address(text),
        Value::Array(list) => {
            for inner in list {
                collect(inner, depth + 1, out, wrong);
            }
        }
        Value::Object(fields) => {
            if let Some(url) = ADDRESSES.iter().find_map(|name| fields.get(*name)?.as_str()) {
                address(url);
                return;
            }
            if let Some(port) = fields.get("port").and_then(Value::as_u64) {
                let host = ["host", "hostname"].iter().find_map(|name| fields.get(*name)?.as_str());
                address(&format!("http://{}:{port}", host.unwrap_or("127.0.0.1")));
                return;
            }
            // Servers by name; other texts of an object are names and notes.
            let named = |text: &str| text.starts_with("http://") || text.starts_with("https://");
            let leads = |inner: &Value| match inner {
                Value::String(text) => named(text),
                other => other.is_array() || other.is_object(),
            };
            for inner in fields.values().filter(|inner| leads(inner)) {
                collect(inner, depth + 1, out, wrong);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Vec<String>> {
        listed(text).map(|(places, _)| places.iter().map(Place::base).collect())
    }

    #[test]
    fn a_list_may_be_flat_or_nested_and_names_each_server_once() {
        let (a, b) = ("http://127.0.0.1:4096".to_owned(), "http://box:5000".to_owned());
        let both = Some(vec![a.clone(), b.clone()]);
        assert_eq!(of(r#"["http://127.0.0.1:4096", "http://box:5000/", "http://127.0.0.1:4096"]"#), both);
        assert_eq!(
            of(r#"[{"url": "http://127.0.0.1:4096", "name": "x"}, {"host": "box", "port": 5000}]"#),
            both
        );
        assert_eq!(of(r#"{"servers": [{"baseUrl": "http://127.0.0.1:4096"}, "http://box:5000"]}"#), both);
        let nested =
            r#"{"a": {"server": "http://127.0.0.1:4096"}, "b": {"c": {"port": 5000, "hostname": "box"}}}"#;
        assert_eq!(of(nested), both);
        let by_name =
            r#"{"shop": "http://127.0.0.1:4096", "note": "the usual", "x": {"y": "http://box:5000"}}"#;
        assert_eq!(of(by_name), both);
        assert_eq!(of("[]"), Some(Vec::new()));
        assert_eq!(of(r#"{"port": 4096}"#), Some(vec![a]));
    }

    #[test]
    fn what_is_no_list_is_told_from_an_empty_one() {
        for text in ["", "{", "7", "\"http://x:1\"", r#"["nonsense"]"#, r#"[{"url": "nonsense"}]"#] {
            assert_eq!(of(text), None, "{text}");
        }
        let deep = "[".repeat(100) + &"]".repeat(100);
        assert_eq!(of(&deep), Some(Vec::new()));
        let many: Vec<String> = (1..500).map(|port| format!("\"http://h:{port}\"")).collect();
        assert_eq!(of(&format!("[{}]", many.join(","))).map(|l| l.len()), Some(MAX_SERVERS));
    }

    #[test]
    fn what_is_wrong_in_a_list_is_told_and_the_rest_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("servers.json");
        let configured = Configured { servers_file: Some(path.clone()), ..Configured::default() };
        let mut servers = Servers::new(&crate::sources::live::tests::source(), &configured);
        for wrong in ["127.0.0.1:4097", "http://me:secret@127.0.0.1:4097"] {
            std::fs::write(&path, format!(r#"["http://a:1", {{"url": "{wrong}"}}]"#)).unwrap();
            assert_eq!(servers.look(), Change::Partly, "{wrong}");
            assert_eq!(servers.look(), Change::Same, "said once");
            assert_eq!(servers.wanted().len(), 1);
        }
    }

    #[test]
    fn a_broken_file_keeps_the_last_list() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("servers.json");
        let configured = Configured { servers_file: Some(path.clone()), ..Configured::default() };
        let source = crate::sources::live::tests::source();
        let mut servers = Servers::new(&source, &configured);
        assert_eq!(servers.look(), Change::Same, "not there yet");
        assert!(servers.wanted().is_empty(), "a file of servers stands for the usual ones");
        std::fs::write(&path, r#"["http://a:1"]"#).unwrap();
        assert_eq!(servers.look(), Change::New);
        assert_eq!(servers.look(), Change::Same);
        std::fs::write(&path, r#"["http://a:1", "#).unwrap();
        assert_eq!(servers.look(), Change::Broken);
        assert_eq!(servers.look(), Change::Same, "said once");
        assert_eq!(servers.wanted().len(), 1);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(servers.look(), Change::Broken);
        assert_eq!(servers.wanted().len(), 1);
        std::fs::write(&path, r#"["http://b:2", "http://c:3"]"#).unwrap();
        assert_eq!(servers.look(), Change::New);
        let wanted: Vec<String> = servers.wanted().iter().map(|s| s.place.base()).collect();
        assert_eq!(wanted, ["http://b:2", "http://c:3"]);
    }
}
