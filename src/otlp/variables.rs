//! Variables of the environment as the specification of OpenTelemetry wants them read: an empty one is unset, a word of a
//! closed set that is not known is said and ignored, anything else that cannot be read is wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::settings::Wrong;

/// A look at the environment, with what was found wrong in it.
pub(super) struct Variables<'a> {
    env: &'a BTreeMap<String, String>,
    pub(super) wrong: Vec<Wrong>,
    pub(super) ignored: Vec<String>,
}

// === impl Variables ===

impl<'a> Variables<'a> {
    pub(super) const fn new(env: &'a BTreeMap<String, String>) -> Self {
        Self { env, wrong: Vec::new(), ignored: Vec::new() }
    }

    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.env.get(name).map(|v| v.trim()).filter(|v| !v.is_empty())
    }

    pub(super) fn is_wrong(&mut self, name: &str, what: &str) {
        let wrong = Wrong { variable: name.to_owned(), what: what.to_owned() };
        // General variables are read once for each signal.
        if !self.wrong.contains(&wrong) {
            self.wrong.push(wrong);
        }
    }

    pub(super) fn is_ignored(&mut self, what: String) {
        if !self.ignored.contains(&what) {
            self.ignored.push(what);
        }
    }

    /// The first of these that is set, with its name.
    pub(super) fn first(&self, names: &[String]) -> Option<(String, &'a str)> {
        names.iter().find_map(|name| self.text(name).map(|value| (name.clone(), value)))
    }

    /// Whether it is true; all but `true` is false.
    pub(super) fn switch(&mut self, name: &str) -> bool {
        match self.text(name) {
            Some(v) if v.eq_ignore_ascii_case("true") => true,
            None => false,
            Some(v) if v.eq_ignore_ascii_case("false") => false,
            Some(_) => {
                self.is_ignored(format!("{name} is neither true nor false and is taken as false"));
                false
            }
        }
    }

    /// One of a closed set. An unknown word is ignored.
    pub(super) fn choice<T: Copy>(&mut self, names: &[String], of: &[(&str, T)]) -> Option<T> {
        let (name, value) = self.first(names)?;
        let found = of.iter().find(|(word, _)| *word == value).map(|(_, choice)| *choice);
        if found.is_none() {
            let words: Vec<&str> = of.iter().map(|(word, _)| *word).collect();
            self.is_ignored(format!("{name} is none of {} and is ignored", words.join(", ")));
        }
        found
    }

    /// A number of milliseconds.
    pub(super) fn millis(&mut self, names: &[String]) -> Option<Duration> {
        let (name, value) = self.first(names)?;
        let read = value.parse().ok().map(Duration::from_millis);
        if read.is_none() {
            self.is_wrong(&name, "expected a number of milliseconds");
        }
        read
    }

    /// A number of things, at least one.
    pub(super) fn count(&mut self, name: &str) -> Option<u64> {
        let read = self.text(name)?.parse().ok().filter(|n| *n > 0);
        if read.is_none() {
            self.is_wrong(name, "expected a whole number, at least 1");
        }
        read
    }

    /// Pairs as `name=value,name=value`, percent-encoded. What is wrong is not shown: it may be a secret.
    pub(super) fn pairs(&mut self, names: &[String]) -> Vec<(String, String)> {
        let Some((name, value)) = self.first(names) else { return Vec::new() };
        let pair = |text: &str| {
            let (key, value) = text.split_once('=')?;
            let decode = |t: &str| Some(percent_decode_str(t.trim()).decode_utf8().ok()?.into_owned());
            let (key, value) = (decode(key)?, decode(value)?);
            (!key.is_empty()).then_some((key, value))
        };
        let parts = value.split(',').filter(|part| !part.trim().is_empty());
        match parts.map(pair).collect() {
            Some(pairs) => pairs,
            None => {
                self.is_wrong(&name, "expected name=value pairs, separated by commas and percent-encoded");
                Vec::new()
            }
        }
    }
}
