//! What is told, by recorded webhooks.

use crate::bus::{Asked, Bus, Desktop, Notification, USUAL};
use crate::{Receiver, changed, recording};

#[test]
fn an_episode_is_told_once_and_leaves_the_screen_when_it_is_over() {
    let bus = Bus::start();
    let desktop = Desktop::start(&bus, USUAL);
    let receiver = Receiver::start(&bus, &[]);
    assert_eq!(receiver.take(&recording("waits")), [1, 0, 0, 0]);
    assert_eq!(receiver.take(&recording("waits_repeated")), [0, 0, 0, 1]);
    assert_eq!(desktop.closed(), [0; 0]);
    assert_eq!(receiver.take(&recording("waits_resolved")), [0, 0, 1, 0]);
    assert_eq!(receiver.take(&recording("waits_anew")), [1, 0, 0, 0]);
    let waits = |id: u32| {
        Asked::Notify(Notification {
            id,
            app: "Coding agents".to_owned(),
            replaces: 0,
            icon: "dialog-warning".to_owned(),
            summary: "codex session in shop waits for you".to_owned(),
            body: "Session asks has been waiting for 30m 5s (certain permission).".to_owned(),
            actions: Vec::new(),
            urgency: 1,
            sound: Some("message-new-instant".to_owned()),
            suppress_sound: false,
            expires: -1,
        })
    };
    assert_eq!(desktop.asked(), [waits(1), Asked::Close(1), waits(2)]);
    assert_eq!(receiver.logged("WARN"), 0);
}

#[test]
fn a_failed_session_is_heard_and_stays() {
    let bus = Bus::start();
    let desktop = Desktop::start(&bus, USUAL);
    let receiver = Receiver::start(&bus, &[]);
    assert_eq!(receiver.take(&recording("failed")), [1, 0, 0, 0]);
    let over = changed("failed", |body| {
        body["status"] = "resolved".into();
        body["alerts"][0]["status"] = "resolved".into();
    });
    assert_eq!(receiver.take(&over), [0, 0, 1, 0]);
    let told = desktop.notifications();
    assert_eq!(told[0].sound.as_deref(), Some("dialog-error"));
    assert_eq!((told.len(), desktop.closed().len()), (1, 0), "its alert ends because its series leave");
}

#[test]
fn others_are_silent_and_as_urgent_as_they_are_severe() {
    let bus = Bus::start();
    let desktop = Desktop::start(&bus, USUAL);
    let receiver = Receiver::start(&bus, &[]);
    for (n, severity) in ["info", "warning", "critical"].into_iter().enumerate() {
        let body = changed("waits", |body| {
            let alert = &mut body["alerts"][0];
            alert["labels"]["alertname"] = "AgentSessionSpinning".into();
            alert["labels"]["severity"] = severity.into();
            alert["fingerprint"] = severity.into();
        });
        assert_eq!(receiver.take(&body), [1, 0, 0, 0]);
        let told = desktop.notifications().pop().unwrap();
        assert_eq!(
            (usize::from(told.urgency), told.sound, told.suppress_sound),
            (n, None, true),
            "{severity}"
        );
    }
}

#[test]
fn text_is_shown_as_it_is_and_links_where_they_can_be_followed() {
    let hostile = |fingerprint: &str, link: &str| {
        changed("waits", |body| {
            let alert = &mut body["alerts"][0];
            alert["annotations"]["summary"] = "<b>&\n\u{0}summary".into();
            alert["annotations"]["description"] = format!("<img src='x'>{}", "y".repeat(100_000)).into();
            alert["annotations"]["dashboard_url"] = link.into();
            alert["fingerprint"] = fingerprint.into();
        })
    };
    let bus = Bus::start();
    for (abilities, escaped, linked) in [
        (&["body"][..], false, false),
        (&["body", "body-markup"][..], true, false),
        (&["body", "body-markup", "body-hyperlinks"][..], true, true),
    ] {
        let desktop = Desktop::start(&bus, abilities);
        let receiver = Receiver::start(&bus, &[]);
        assert_eq!(receiver.take(&hostile("1", "https://grafana.example/d/x?a=1&b=2")), [1, 0, 0, 0]);
        assert_eq!(receiver.take(&hostile("2", "/d/x?a=1")), [1, 0, 0, 0]);
        let [absolute, relative] = desktop.notifications().try_into().unwrap();
        assert_eq!(absolute.summary, "<b>& summary", "a summary is never markup");
        let begin = if escaped { "&lt;img src=&apos;x&apos;&gt;yyy" } else { "<img src='x'>yyy" };
        assert!(absolute.body.starts_with(begin) && absolute.body.len() < 700, "{}", absolute.body);
        let link = "\n<a href=\"https://grafana.example/d/x?a=1&amp;b=2\">Dashboard</a>";
        assert_eq!(absolute.body.ends_with(link), linked, "{}", absolute.body);
        assert!(!relative.body.contains("/d/x"), "{}", relative.body);
    }
}
