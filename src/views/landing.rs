//! The page at `/`: links and one table of sessions. No script; everything from outside is escaped.

use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::http::Options;
use super::status::web_link;
use crate::event::Timestamp;
use crate::session::{Derived, Rollup, Snapshot};

/// Rows of the table; the API lists the rest.
const MAX_ROWS: usize = 500;
/// What stays as it is in one component of a path.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:78rem;padding:0 1rem}\
h1{font-size:1.4rem;margin:0}p{margin:.4rem 0}nav{margin:1rem 0}nav a{margin-right:1.2rem}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid #8884;vertical-align:top}\
th{font-weight:600}th,td{white-space:nowrap}td.age{font-variant-numeric:tabular-nums}\
td:nth-child(-n+3){white-space:normal;overflow-wrap:anywhere}\
.look{font-weight:600;color:#b45309}.over{opacity:.6}code{font-size:.9em}";

/// The page at this moment: what needs a person first, then the newest activity.
pub(super) fn page(snapshot: &Snapshot, now: Timestamp, options: &Options) -> String {
    let mut rows: Vec<(Rollup<'_>, Derived)> = snapshot
        .roots()
        .filter_map(|slot| snapshot.rollup(slot, now))
        .map(|view| {
            let derived = snapshot.derive(&view);
            (view, derived)
        })
        .collect();
    rows.sort_by_cached_key(|(view, derived)| {
        let calm = !derived.state.needs_attention();
        let newest = view.last_activity().map_or(i64::MIN, Timestamp::as_millis);
        (calm, derived.state.is_end(), std::cmp::Reverse(newest))
    });
    let mut out = String::with_capacity(4096 + 400 * rows.len().min(MAX_ROWS));
    head(&mut out, options);
    if rows.is_empty() {
        let word = if snapshot.scanned { "No sessions yet." } else { "The first scan is not finished." };
        put(&mut out, format_args!("<p>{word}</p>"));
    } else {
        table(&mut out, &rows, now);
    }
    if let Some(more) = rows.len().checked_sub(MAX_ROWS).filter(|more| *more > 0) {
        put(
            &mut out,
            format_args!("<p>{more} more in <a href=\"/api/v1/sessions\">/api/v1/sessions</a></p>"),
        );
    }
    out.push_str("</body></html>\n");
    out
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a string does not fail");
}

fn head(out: &mut String, options: &Options) {
    let version = env!("CARGO_PKG_VERSION");
    put(
        out,
        format_args!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <title>agent-session-exporter</title><style>{STYLE}</style></head><body>\n\
             <h1>agent-session-exporter</h1><p>Version {version}. Facts about coding-agent sessions.</p>\n<nav>"
        ),
    );
    let metrics = escape(&options.metrics_path);
    for (link, name) in [
        (metrics.as_str(), "Metrics"),
        ("/api/v1/sessions", "Sessions"),
        ("/api/v1/orchestrations", "Orchestrations"),
        ("/api/v1/openapi.json", "API"),
        ("/api/v1/schema/status.json", "Status schema"),
        ("/api/v1/schema/event.json", "Event schema"),
        ("/-/healthy", "Healthy"),
        ("/-/ready", "Ready"),
    ] {
        put(out, format_args!("<a href=\"{link}\">{name}</a>"));
    }
    out.push_str("</nav>\n");
    if options.push_enabled {
        out.push_str("<p>Events are pushed with <code>POST /api/v1/events</code>.</p>\n");
    }
}

fn table(out: &mut String, rows: &[(Rollup<'_>, Derived)], now: Timestamp) {
    out.push_str(
        "<table><thead><tr><th>Session</th><th>Source</th><th>Project</th><th>State</th><th>Reason</th><th>Since</th>\
         <th>Last activity</th><th>Last progress</th><th></th></tr></thead><tbody>\n",
    );
    for (view, derived) in rows.iter().take(MAX_ROWS) {
        row(out, view, derived, now);
    }
    out.push_str("</tbody></table>\n");
}

fn row(out: &mut String, view: &Rollup<'_>, derived: &Derived, now: Timestamp) {
    let root = view.root;
    let (source, session) = (root.source.as_str(), root.session.as_str());
    let path = path(source, session);
    let class = match derived.state {
        state if state.needs_attention() => "look",
        state if state.is_end() => "over",
        _ => "",
    };
    let name = match &path {
        Some(path) => format!("<a href=\"{path}/status\">{}</a>", escape(session)),
        None => escape(session),
    };
    put(
        out,
        format_args!(
            "<tr><td>{name}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}</td><td>{}</td>",
            escape(source),
            escape(root.project.as_ref().map_or("", |p| p.as_str())),
            derived.state.as_str(),
            derived.reason.as_str(),
        ),
    );
    for time in [Some(derived.since), view.last_activity(), view.last_progress()] {
        match time {
            Some(t) => put(
                out,
                format_args!(
                    "<td class=\"age\"><time datetime=\"{t}\" title=\"{t}\">{}</time></td>",
                    age(now, t)
                ),
            ),
            None => out.push_str("<td></td>"),
        }
    }
    out.push_str("<td>");
    if let Some(path) = path {
        put(out, format_args!("<a href=\"{path}/explain\">why</a>"));
    }
    if let Some(url) = root.info.url.as_ref().and_then(|u| web_link(u.as_str())) {
        put(out, format_args!(" <a rel=\"noreferrer noopener\" href=\"{}\">open</a>", escape(url)));
    }
    out.push_str("</td></tr>\n");
}

/// The path of a session, unless no browser could ask for it: it resolves dots even where they are encoded.
fn path(source: &str, session: &str) -> Option<String> {
    let reachable = |part: &str| !matches!(part, "" | "." | "..");
    let encode = |part| utf8_percent_encode(part, COMPONENT);
    (reachable(source) && reachable(session))
        .then(|| format!("/api/v1/sessions/{}/{}", encode(source), encode(session)))
}

fn age(now: Timestamp, then: Timestamp) -> String {
    let seconds = now.since(then).max(0) / 1000;
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Direction marks and control characters would let a name rewrite what stands beside it.
            c if c.is_control() || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}') => {
                out.push('\u{FFFD}');
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_from_outside_is_text() {
        assert_eq!(escape("<script>\"&'"), "&lt;script&gt;&quot;&amp;&#39;");
        assert_eq!(escape("a\u{202E}b\n"), "a\u{FFFD}b\u{FFFD}");
    }

    #[test]
    fn an_id_never_leaves_its_place_in_a_path() {
        assert_eq!(path("push", "../a?b#c").as_deref(), Some("/api/v1/sessions/push/..%2Fa%3Fb%23c"));
        assert_eq!(path("push", ".."), None);
    }

    #[test]
    fn ages_are_short() {
        let now = Timestamp::from_millis(1_000_000_000);
        let ages = [-5_000, 59_000, 60_000, 3_660_000, 200_000_000].map(|ms: i64| age(now, now.plus(-ms)));
        assert_eq!(ages, ["0 s", "59 s", "1 min", "1 h 1 min", "2 d"]);
    }
}
