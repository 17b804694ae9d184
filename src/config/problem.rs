//! What is wrong with a configuration: every problem at once, each with its place and what would be right.

use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Problem {
    /// The key, flag or variable, or the file as a whole.
    pub place: String,
    /// What is expected there.
    pub what: String,
}

/// All that is wrong; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0.len();
        write!(f, "{n} problem{} in the configuration", if n == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|p| write!(f, "\n  {p}"))
    }
}

impl std::error::Error for Problems {}

/// The known name that was probably meant. A name without its table counts as near to the one inside a table.
pub(super) fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let last = |path: &'a str| path.rsplit('.').next().unwrap_or(path);
    known
        .into_iter()
        .map(|name| {
            let whole = strsim::damerau_levenshtein(given, name);
            // A tie goes to the name that fits as a whole.
            let part = strsim::damerau_levenshtein(given, last(name)) + 1;
            (whole.min(part), name)
        })
        .filter(|(distance, _)| *distance <= 1 + given.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// "unknown key", with the nearest known one.
pub(super) fn unknown<'a>(what: &str, given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(given, known) {
        Some(name) => format!("unknown {what}, did you mean {name}?"),
        None => format!("unknown {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_key_and_nonsense_finds_none() {
        let known = ["web.listen_address", "max_sessions", "max_tracked", "home"];
        assert_eq!(nearest("web.listen_adress", known), Some("web.listen_address"));
        assert_eq!(nearest("listen_address", known), Some("web.listen_address"));
        assert_eq!(nearest("max_session", known), Some("max_sessions"));
        assert_eq!(nearest("homes", known), Some("home"));
        assert_eq!(nearest("colour", known), None);
    }

    #[test]
    fn problems_are_listed_one_a_line() {
        let p = |place: &str| Problem { place: place.to_owned(), what: "no".to_owned() };
        assert_eq!(Problems(vec![p("a")]).to_string(), "1 problem in the configuration\n  a: no");
        assert_eq!(
            Problems(vec![p("a"), p("b")]).to_string(),
            "2 problems in the configuration\n  a: no\n  b: no"
        );
    }
}
