//! What is said of an alert: title, text, link, urgency and sound, from its labels and annotations. Pure; everything in
//! it comes from outside and is bounded and escaped here.

use super::webhook::Alert;

/// Characters of a title.
const MAX_TITLE: usize = 120;
/// Characters of a text.
const MAX_TEXT: usize = 500;
/// Bytes of a link.
const MAX_LINK: usize = 2048;
/// Alerts that a sum names.
const MAX_NAMED: usize = 5;
/// The alert of a request to the user. That of a guessed one is silent: it is often only a call that lasts.
const WAITS: &str = "AgentSessionWaitingForUser";
/// Alerts of a session that failed.
const FAILED: [&str; 3] = ["AgentSessionFailed", "AgentSessionGone", "AgentSessionAuthFailed"];
/// How the description of the shipped rule says that a request is guessed.
const GUESSED: &str = "(probable ";

/// A notification as it is meant, before the desktop's abilities are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// One line.
    pub(super) title: String,
    /// Plain text, not escaped; lines only in a sum.
    pub(super) text: String,
    /// Where more can be seen. Nothing of ours ever opens it.
    pub(super) link: Option<String>,
    /// How much it disturbs.
    pub(super) urgency: Urgency,
    /// What is heard, if anything.
    pub(super) sound: Option<Sound>,
}

/// How much a notification disturbs, as in the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Worth reading some time.
    Low = 0,
    /// The usual.
    Normal = 1,
    /// It stays until somebody takes it away.
    Critical = 2,
}

/// What is heard; names of the freedesktop sound theme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sound {
    /// A session failed.
    Failed,
    /// A person has to act.
    Asked,
}

/// What the desktop can show of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Abilities {
    /// Markup: where it can, text has to be escaped; where it cannot, escapes would be shown.
    pub(super) markup: bool,
    /// Links in it.
    pub(super) links: bool,
}

// === impl Urgency ===

impl Urgency {
    fn of(severity: &str) -> Self {
        match severity {
            "critical" => Self::Critical,
            "info" | "none" => Self::Low,
            // A severity of somebody else's rules was sent here on purpose.
            _ => Self::Normal,
        }
    }

    /// Its word.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::Critical => "critical",
        }
    }

    /// The icon of the freedesktop theme that goes with it.
    pub(super) const fn icon(self) -> &'static str {
        match self {
            Self::Low => "dialog-information",
            Self::Normal => "dialog-warning",
            Self::Critical => "dialog-error",
        }
    }
}

// === impl Sound ===

impl Sound {
    /// Only what a person has to do something about now may be heard.
    fn of(alert: &Alert) -> Option<Self> {
        let name = alert.label("alertname");
        if name == WAITS && !alert.annotation("description").contains(GUESSED) {
            Some(Self::Asked)
        } else if FAILED.contains(&name) {
            Some(Self::Failed)
        } else {
            None
        }
    }

    /// Its name in the freedesktop sound theme.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "dialog-error",
            Self::Asked => "message-new-instant",
        }
    }
}

// === impl Notice ===

impl Notice {
    /// What is said of one alert.
    pub(super) fn of(alert: &Alert) -> Self {
        let title = [alert.annotation("summary"), alert.label("alertname"), "An alert"];
        let title = title.into_iter().map(|t| clean(t, MAX_TITLE)).find(|t| !t.is_empty());
        Self {
            title: title.unwrap_or_default(),
            text: clean(alert.annotation("description"), MAX_TEXT),
            link: absolute(alert.annotation("dashboard_url")),
            urgency: Urgency::of(alert.label("severity")),
            sound: Sound::of(alert),
        }
    }

    /// What is said of several alerts at once, and of `more` about which only their number is known. It disturbs as
    /// much as the worst of them.
    pub(super) fn sum<'a>(of: impl IntoIterator<Item = &'a Self>, more: u64) -> Self {
        let (mut lines, mut count) = (Vec::new(), more);
        let (mut urgency, mut sound) = (Urgency::Low, None);
        for notice in of {
            count += 1;
            if lines.len() < MAX_NAMED {
                lines.push(notice.title.clone());
            }
            urgency = urgency.max(notice.urgency);
            sound = sound.max(notice.sound);
        }
        if lines.is_empty() {
            // Nothing is known of them, and info does not come to a desktop by itself.
            urgency = Urgency::Normal;
        }
        let unnamed = count - lines.len() as u64;
        if unnamed > 0 && !lines.is_empty() {
            lines.push(format!("and {unnamed} more"));
        }
        let title =
            if count == 1 { "and 1 more alert".to_owned() } else { format!("and {count} more alerts") };
        Self { title, text: lines.join("\n"), link: None, urgency, sound }
    }

    /// The body for a desktop of these abilities.
    pub(super) fn body(&self, abilities: Abilities) -> String {
        if !abilities.markup {
            return self.text.clone();
        }
        let mut body = escape(&self.text);
        if let Some(link) = self.link.as_ref().filter(|_| abilities.links) {
            if !body.is_empty() {
                body.push('\n');
            }
            body.push_str(&format!("<a href=\"{}\">Dashboard</a>", escape(link)));
        }
        body
    }
}

/// One line without anything that is not seen, at most `max` characters.
fn clean(text: &str, max: usize) -> String {
    // Marks that turn the direction of a text could make it read as another one.
    let turns =
        |c: &char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut out = String::new();
    for c in text.chars().filter(|c| !turns(c)) {
        if !(c.is_whitespace() || c.is_control()) {
            out.push(c);
        } else if !out.is_empty() && !out.ends_with(' ') {
            out.push(' ');
        }
    }
    let whole = out.trim_end();
    match whole.char_indices().nth(max) {
        None => whole.to_owned(),
        Some(_) => whole.chars().take(max - 1).chain(['…']).collect(),
    }
}

/// The link if it leads somewhere by itself. Those of the shipped rules are relative until somebody says to where.
fn absolute(link: &str) -> Option<String> {
    let web = ["http://", "https://"].iter().any(|scheme| {
        link.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
            && link.len() > scheme.len()
    });
    let plain = link.len() <= MAX_LINK && !link.chars().any(|c| c.is_whitespace() || c.is_control());
    (web && plain).then(|| link.to_owned())
}

/// Text as markup that shows it as it is.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::webhook::tests::alert;
    use super::*;

    const ALL: Abilities = Abilities { markup: true, links: true };

    fn with(name: &str, annotations: &[(&str, &str)]) -> Alert {
        let mut alert = alert(name, "s", "warning", 0);
        alert.annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        alert
    }

    #[test]
    fn only_who_has_to_act_and_what_failed_is_heard() {
        let sound = |name: &str, severity: &str| Notice::of(&alert(name, "s", severity, 0)).sound;
        assert_eq!(sound(WAITS, "info"), Some(Sound::Asked));
        for name in FAILED {
            assert_eq!(sound(name, "critical"), Some(Sound::Failed), "{name}");
        }
        for name in [
            "AgentSessionSpinning",
            "AgentSessionBlocked",
            "AgentSessionVerificationFailed",
            "AgentOrchestrationFailed",
            "AgentSessionExporterDown",
            "Failed",
            "",
        ] {
            assert_eq!(sound(name, "critical"), None, "{name}");
        }
    }

    #[test]
    fn a_guessed_request_is_silent() {
        let sound = |description: &str| Notice::of(&with(WAITS, &[("description", description)])).sound;
        assert_eq!(sound("Session s has been waiting for 15m 2s (probable permission)."), None);
        assert_eq!(sound("Session s has been waiting for 5m 2s (certain question)."), Some(Sound::Asked));
        assert_eq!(sound("Session s has been waiting for 5m 2s ."), Some(Sound::Asked));
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/alerts/agent_sessions.yml");
        let rules = std::fs::read_to_string(rules).unwrap();
        let shipped = r#"({{ . | first | label "certainty" }} {{ . | first | label "kind" }})"#;
        assert!(rules.contains(shipped), "the shipped description no longer says what is looked for");
    }

    #[test]
    fn severity_is_urgency() {
        let urgency = |severity: &str| Notice::of(&alert("A", "s", severity, 0)).urgency;
        assert_eq!(urgency("info"), Urgency::Low);
        assert_eq!(urgency("warning"), Urgency::Normal);
        assert_eq!(urgency("critical"), Urgency::Critical);
        assert_eq!((urgency(""), urgency("page")), (Urgency::Normal, Urgency::Normal));
    }

    #[test]
    fn the_title_is_the_best_there_is() {
        assert_eq!(Notice::of(&with("A", &[("summary", "It burns")])).title, "It burns");
        assert_eq!(Notice::of(&with("A", &[("summary", " \n")])).title, "A");
        assert_eq!(Notice::of(&with("", &[])).title, "An alert");
    }

    #[test]
    fn text_is_escaped_where_markup_is_shown() {
        let text = "<b>&\"'</b>";
        let notice = Notice::of(&with("A", &[("description", text)]));
        assert_eq!(notice.body(ALL), "&lt;b&gt;&amp;&quot;&apos;&lt;/b&gt;");
        assert_eq!(notice.body(Abilities::default()), text);
    }

    #[test]
    fn links_are_shown_where_they_lead_somewhere_and_can_be_followed() {
        let of = |link: &str| Notice::of(&with("A", &[("description", "d"), ("dashboard_url", link)]));
        let notice = of("https://grafana.example/d/x?a=1&b='2'");
        let shown = "d\n<a href=\"https://grafana.example/d/x?a=1&amp;b=&apos;2&apos;\">Dashboard</a>";
        assert_eq!(notice.body(ALL), shown);
        assert_eq!(notice.body(Abilities { markup: true, links: false }), "d");
        assert_eq!(notice.body(Abilities { markup: false, links: true }), "d");
        let long = format!("https://grafana.example/{}", "x".repeat(MAX_LINK));
        for none in [
            "",
            "/d/x",
            "RUNBOOK.md#x",
            "javascript:alert(1)",
            "file:///etc",
            "https://",
            "http://a b",
            &long,
        ] {
            assert_eq!(of(none).body(ALL), "d", "{none}");
        }
    }

    #[test]
    fn texts_are_one_line_and_bounded() {
        assert_eq!(clean("  a\n\t b\0c\u{202e} ", 10), "a b c");
        assert_eq!(clean(&"ä".repeat(10), 10), "ä".repeat(10));
        assert_eq!(clean(&"ä".repeat(11), 10), format!("{}…", "ä".repeat(9)));
        let notice =
            Notice::of(&with("A", &[("summary", &"x ".repeat(9999)), ("description", &"& ".repeat(9999))]));
        assert_eq!((notice.title.chars().count(), notice.text.chars().count()), (MAX_TITLE, MAX_TEXT));
        assert!(notice.body(ALL).len() < 6 * MAX_TEXT);
    }

    #[test]
    fn a_sum_names_some_and_is_as_loud_as_the_worst() {
        let of = |name: &str, severity: &str| Notice::of(&alert(name, name, severity, 0));
        let some = [of("Quiet", "info"), of("AgentSessionFailed", "warning"), of(WAITS, "warning")];
        let sum = Notice::sum(&some, 0);
        assert_eq!(sum.title, "and 3 more alerts");
        assert_eq!(sum.text, "Quiet\nAgentSessionFailed\nAgentSessionWaitingForUser");
        assert_eq!((sum.urgency, sum.sound), (Urgency::Normal, Some(Sound::Asked)));
        let many: Vec<_> = (0..9).map(|_| of("Disk", "critical")).collect();
        let sum = Notice::sum(&many, 4);
        assert_eq!(sum.title, "and 13 more alerts");
        assert!(
            sum.text.ends_with("Disk\nand 8 more") && sum.text.lines().count() == MAX_NAMED + 1,
            "{}",
            sum.text
        );
        assert_eq!((sum.urgency, sum.sound), (Urgency::Critical, None));
        let unnamed = Notice::sum(&[], 1);
        assert_eq!((unnamed.title.as_str(), unnamed.text.as_str()), ("and 1 more alert", ""));
        assert_eq!(unnamed.urgency, Urgency::Normal);
    }
}
