//! `notify --test`.

use serde_json::{Value, json};

use crate::bus::{Bus, Desktop, USUAL};
use crate::command;

#[test]
fn an_example_of_each_kind_is_sent_and_printed() {
    let bus = Bus::start();
    let desktop = Desktop::start(&bus, USUAL);
    let folder = tempfile::tempdir().unwrap();
    let out = command(&folder, &bus.address()).arg("--test").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let printed: Vec<Value> =
        String::from_utf8(out.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let urgency = |n: u8| ["low", "normal", "critical"][usize::from(n)];
    let sent: Vec<Value> = desktop
        .notifications()
        .into_iter()
        .map(|n| {
            json!({"id": n.id, "summary": n.summary, "body": n.body, "urgency": urgency(n.urgency),
                   "icon": n.icon, "sound": n.sound})
        })
        .collect();
    assert_eq!(printed, sent);
    let kinds: Vec<_> = sent.iter().map(|n| (n["urgency"].as_str(), n["sound"].as_str())).collect();
    let expected = [
        ("normal", Some("message-new-instant")),
        ("normal", Some("dialog-error")),
        ("normal", None),
        ("critical", None),
        ("normal", None),
    ];
    assert_eq!(kinds, expected.map(|(urgency, sound)| (Some(urgency), sound)));
    assert_eq!(sent[4]["summary"], "and 2 more alerts");
    assert!(!folder.path().join("state").exists(), "it needs no state");
}

#[test]
fn without_a_bus_it_says_so_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let mut at_default = command(&folder, "");
    at_default.env_remove("DBUS_SESSION_BUS_ADDRESS").env("XDG_RUNTIME_DIR", folder.path());
    for mut command in [at_default, command(&folder, "unix:path=/nonexistent"), command(&folder, "nonsense")]
    {
        let out = command.arg("--test").output().unwrap();
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0));
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(said.contains("the session bus cannot be reached (DBUS_SESSION_BUS_ADDRESS"), "{said}");
    }
}
