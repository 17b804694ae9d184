//! Examples of what is told, one of each kind, for `notify --test`. They are made as alerts and go the way of alerts.

use std::collections::BTreeMap;

use super::notice::Notice;
use super::webhook::{Alert, Status};
use crate::event::Timestamp;

/// Alert, category, severity, summary, description.
type Sample = (&'static str, &'static str, &'static str, &'static str, &'static str);

const SAMPLES: [Sample; 4] = [
    (
        "AgentSessionWaitingForUser",
        "waiting",
        "warning",
        "Example: codex session in shop waits for you",
        "Session example has been waiting for 30m 0s (certain permission). This one is heard.",
    ),
    (
        "AgentSessionFailed",
        "event",
        "warning",
        "Example: codex session in shop failed",
        "Session example ended in failure (error). This one is heard.",
    ),
    (
        "AgentSessionSpinning",
        "stuck",
        "warning",
        "Example: codex session in shop repeats itself",
        "90% of the last calls of session example brought nothing new. This one is silent.",
    ),
    (
        "AgentSessionExporterDown",
        "exporter",
        "critical",
        "Example: the exporter cannot be reached",
        "Nothing is known of its sessions. This one is silent and stays.",
    ),
];

/// An example of each kind, the last of them a sum.
pub(super) fn samples() -> Vec<Notice> {
    let mut notices: Vec<Notice> = SAMPLES.iter().map(|sample| Notice::of(&alert(*sample))).collect();
    let told = [
        ("AgentSessionBlocked", "blocked", "warning", "Example: codex session in shop is blocked", ""),
        ("AgentSessionRateLimited", "limits", "warning", "Example: codex is rate limited", ""),
    ];
    notices.push(Notice::sum(&told.map(|sample| Notice::of(&alert(sample))), 0));
    notices
}

fn alert((name, category, severity, summary, description): Sample) -> Alert {
    let texts = |of: &[(&str, &str)]| -> BTreeMap<String, String> {
        of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    Alert {
        status: Status::Firing,
        labels: texts(&[("alertname", name), ("category", category), ("severity", severity)]),
        annotations: texts(&[("summary", summary), ("description", description)]),
        starts_at: Timestamp::default(),
        fingerprint: name.to_owned(),
    }
}
