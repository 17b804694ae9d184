//! The list of sessions, page by page. A page continues after a key, not after a number, so that sessions that come
//! or leave in between shift nothing; all pages of one listing derive states at the moment of the first.

use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;

use super::http::Refusal;
use super::status::Status;
use crate::event::Timestamp;
use crate::session::{Snapshot, State};

/// Sessions on a page, unless the reader says otherwise.
const DEFAULT_LIMIT: usize = 100;
/// Most sessions on a page.
const MAX_LIMIT: usize = 1000;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Query {
    source: Option<String>,
    project: Option<String>,
    states: Vec<State>,
    children: bool,
    limit: usize,
    /// Source and session the page comes after.
    after: Option<(String, String)>,
    now: Timestamp,
}

/// One page.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page<'a> {
    sessions: Vec<Status<'a>>,
    next_cursor: Option<String>,
}

const fn bad(reason: &'static str, error: &'static str) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, reason, error)
}

// === impl Query ===

impl Query {
    /// Reads the query string; `now` holds where no cursor brings its own.
    pub(super) fn parse(text: &str, now: Timestamp) -> Result<Self, Refusal> {
        let mut query = Self {
            source: None,
            project: None,
            states: Vec::new(),
            children: false,
            limit: DEFAULT_LIMIT,
            after: None,
            now,
        };
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in pairs(text)? {
            if seen.contains(&name) {
                return Err(bad("repeated_parameter", "a parameter is given twice"));
            }
            match name.as_str() {
                "source" => query.source = Some(value),
                "project" => query.project = Some(value),
                "state" => query.states = states(&value)?,
                "children" => query.children = flag(&value)?,
                "limit" => query.limit = limit(&value)?,
                "cursor" => query.continue_at(&value, now)?,
                _ => {
                    return Err(bad(
                        "unknown_parameter",
                        "the parameters are source, project, state, children, limit and cursor",
                    ));
                }
            }
            seen.push(name);
        }
        Ok(query)
    }

    fn continue_at(&mut self, cursor: &str, now: Timestamp) -> Result<(), Refusal> {
        let (at, source, session) =
            read_cursor(cursor).ok_or(bad("bad_cursor", "the cursor is not one of ours"))?;
        // A cursor from the future would age sessions before their time.
        self.now = at.min(now);
        self.after = Some((source, session));
        Ok(())
    }
}

/// The sessions that are asked for.
pub(super) fn page<'a>(snapshot: &'a Snapshot, query: &Query) -> Page<'a> {
    let mut sessions: Vec<Status<'a>> = Vec::new();
    let mut last = None;
    for slot in snapshot.slots() {
        let Some(facts) = snapshot.facts(slot) else { continue };
        let key = (facts.source.as_str(), facts.session.as_str());
        let before = query.after.as_ref().is_some_and(|(a, b)| key <= (a.as_str(), b.as_str()));
        let wanted = query.source.as_ref().is_none_or(|s| s == key.0)
            && query.project.as_ref().is_none_or(|p| facts.project.as_ref().is_some_and(|f| f.as_str() == p))
            && (query.children || snapshot.is_root(slot));
        if before || !wanted {
            continue;
        }
        let Some(view) = snapshot.rollup(slot, query.now) else { continue };
        let derived = snapshot.derive(&view);
        if !query.states.is_empty() && !query.states.contains(&derived.state) {
            continue;
        }
        // Only one more makes it certain that there is a next page.
        if sessions.len() == query.limit {
            return Page { sessions, next_cursor: last.map(|key| cursor(query.now, key)) };
        }
        sessions.push(Status::with(snapshot, &view, &derived));
        last = Some(key);
    }
    Page { sessions, next_cursor: None }
}

fn cursor(now: Timestamp, (source, session): (&str, &str)) -> String {
    // A source has no line break; the session, which may have one, comes last.
    URL_SAFE_NO_PAD.encode(format!("{}\n{source}\n{session}", now.as_millis()))
}

fn read_cursor(text: &str) -> Option<(Timestamp, String, String)> {
    let plain = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let mut parts = plain.splitn(3, '\n');
    let now = Timestamp::from_millis(parts.next()?.parse().ok()?);
    Some((now, parts.next()?.to_owned(), parts.next()?.to_owned()))
}

/// Names and values of a query string.
fn pairs(text: &str) -> Result<Vec<(String, String)>, Refusal> {
    let decode = |part: &str| {
        let spaced = part.replace('+', " ");
        let decoded = percent_encoding::percent_decode_str(&spaced).decode_utf8();
        decoded.map(std::borrow::Cow::into_owned).map_err(|_| bad("bad_encoding", "the query is not UTF-8"))
    };
    let parts = text.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((decode(name)?, decode(value)?))
        })
        .collect()
}

fn states(value: &str) -> Result<Vec<State>, Refusal> {
    let parse =
        |word| State::parse(word).ok_or(bad("bad_state", "state is one of the ten, or several with commas"));
    value.split(',').map(parse).collect()
}

fn flag(value: &str) -> Result<bool, Refusal> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(bad("bad_children", "children is true or false")),
    }
}

fn limit(value: &str) -> Result<usize, Refusal> {
    let number = value.parse().ok().filter(|n| (1..=MAX_LIMIT).contains(n));
    number.ok_or(bad("bad_limit", "limit is a number from 1 to 1000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_795_966_474_638);

    #[test]
    fn cursors_read_back() {
        let text = cursor(NOW, ("push", "a\nb/ü"));
        assert_eq!(read_cursor(&text), Some((NOW, "push".to_owned(), "a\nb/ü".to_owned())));
        assert_eq!(read_cursor("%%%"), None);
    }

    #[test]
    fn a_cursor_from_the_future_is_clamped() {
        let text = format!("cursor={}", cursor(NOW.plus(1000), ("a", "b")));
        assert_eq!(Query::parse(&text, NOW).unwrap().now, NOW);
    }

    #[test]
    fn values_are_decoded() {
        let query = Query::parse("project=my+shop%2Fx&state=failed,unknown&children=1", NOW).unwrap();
        assert_eq!(query.project.as_deref(), Some("my shop/x"));
        assert_eq!(query.states, [State::Failed, State::Unknown]);
        assert!(query.children);
    }
}
