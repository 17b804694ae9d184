//! What a folder can hold: keys that are none of our business, damaged and absurd files, far too many of them.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use agent_session_exporter::event::{ActionKind, Fact, Writer};
use agent_session_exporter::sources::claude_code::Existence;
use notify::event::{AccessKind, EventKind};
use notify::{RecursiveMode, Watcher as _};

use super::stand::{Stand, T, content, ms, start_of};

const SECRET: &str = "peer-token-that-must-stay-where-it-is";

fn mkfifo(path: &std::path::Path) {
    #[expect(clippy::disallowed_methods, reason = "the standard library makes no pipes with names")]
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

#[test]
fn the_key_beside_a_file_is_never_opened() {
    let mut stand = Stand::new();
    stand.live(7, start_of(7));
    stand.status(7, "a", "busy");
    let keys =
        ["7.0123abcd.key", "7.key", "7.json.key", "key.json", "07.json", "7.json~", "+7.json", "7.JSON"];
    for key in keys {
        fs::write(stand.folder().join(key), content(7, SECRET, "busy", T)).unwrap();
    }
    let (send, opened) = mpsc::channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let event = event.unwrap();
        if matches!(event.kind, EventKind::Access(AccessKind::Open(_))) {
            event.paths.into_iter().for_each(|path| send.send(path).unwrap());
        }
    })
    .unwrap();
    watcher.watch(&stand.folder(), RecursiveMode::NonRecursive).unwrap();
    for seconds in 0..3 {
        stand.look_at(T + seconds * 1000);
    }
    stand.restart();
    stand.next();
    // The last open that is seen is one of our own, so that all before it were seen too.
    let last = stand.folder().join("last");
    fs::write(&last, "x").unwrap();
    let mut files = Vec::new();
    loop {
        let path = opened.recv_timeout(Duration::from_secs(10)).unwrap();
        if path == last {
            break;
        }
        files.push(path);
    }
    files.retain(|path| *path != stand.folder());
    files.dedup();
    assert_eq!(files, [stand.path(7)]);
    assert!(!format!("{:?}", stand.events).contains(SECRET));
}

#[test]
fn what_is_no_plain_file_is_left_alone() {
    let mut stand = Stand::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("1"), content(1, "linked", "busy", T)).unwrap();
    symlink(outside.path().join("1"), stand.path(1)).unwrap();
    mkfifo(&stand.path(2));
    fs::create_dir(stand.path(3)).unwrap();
    symlink("/dev/zero", stand.path(4)).unwrap();
    fs::write(stand.folder().join(std::ffi::OsStr::from_bytes(b"5\xff.json")), "{}").unwrap();
    for pid in [1, 6] {
        stand.live(pid, start_of(pid));
    }
    stand.status(6, "a", "busy");
    let began = Instant::now();
    stand.look_at(T);
    stand.next();
    assert!(began.elapsed() < Duration::from_secs(5), "a pipe without a writer must not hold it up");
    assert!(stand.events.iter().all(|e| e.session.as_str() == "a"));
    assert_eq!(stand.writers("a"), [Writer::Alive]);
}

#[test]
fn half_a_file_says_nothing_and_kills_nobody() {
    let mut stand = Stand::new();
    stand.live(7, start_of(7));
    stand.status(7, "a", "waiting");
    stand.look_at(T);
    let told = stand.events.len();
    let whole = content(7, "a", "idle", T + 500);
    let damaged: Vec<Vec<u8>> = vec![
        Vec::new(),
        whole.as_bytes()[..whole.len() / 2].to_vec(),
        vec![0; 700],
        b"\xff\xfe{}".to_vec(),
        b"[1,2]".to_vec(),
        b"null".to_vec(),
        b"{}".to_vec(),
        whole.replace(r#""pid":7"#, r#""pid":8"#).into_bytes(),
        whole.replace(r#""a""#, "17").into_bytes(),
        whole.replace(r#""a""#, r#""""#).into_bytes(),
        "[".repeat(60_000).into_bytes(),
        [whole.as_bytes(), &vec![b' '; 64 << 10]].concat(),
    ];
    for bytes in damaged {
        fs::write(stand.path(7), &bytes).unwrap();
        let out = stand.next();
        assert_eq!(out, [], "{:?}", &bytes[..bytes.len().min(40)]);
    }
    assert_eq!(stand.events.len(), told);
    assert_eq!(stand.facts("a").actions.len(), 1);
    stand.write(7, &whole);
    stand.next();
    assert!(stand.facts("a").actions.is_empty());
}

#[test]
fn absurd_values_are_none() {
    let plain = content(7, "a", "waiting", T);
    let (time, start) = (format!(r#""statusUpdatedAt":{T}"#), format!(r#""{}""#, start_of(7)));
    let cases = [
        ("seconds", plain.replace(&time, &format!(r#""statusUpdatedAt":{}"#, T / 1000))),
        ("text", plain.replace(&time, r#""statusUpdatedAt":"1795966000000""#)),
        ("negative", plain.replace(&time, r#""statusUpdatedAt":-5"#)),
        ("huge", plain.replace(&time, r#""statusUpdatedAt":1e300"#)),
        ("ahead", plain.replace(&time, &format!(r#""statusUpdatedAt":{}"#, T + 3_600_000))),
        ("object", plain.replace(&time, r#""statusUpdatedAt":{"a":[{"b":1}]}"#)),
        ("start as number", plain.replace(&start, &start.replace('"', ""))),
        ("start as object", plain.replace(&start, r#"{"ticks":1}"#)),
        ("long start", plain.replace(&start, &format!(r#""{}""#, "9".repeat(400)))),
        ("long domain", plain.replace("linux:", &"x".repeat(5000))),
        ("status as number", plain.replace(r#""waiting""#, "3")),
        ("long status", plain.replace(r#""waiting""#, &format!(r#""{}""#, "w".repeat(9000)))),
        ("folder as list", plain.replace(r#""/home/dev/project""#, r#"["/home/dev/project"]"#)),
    ];
    for (what, text) in cases {
        let mut stand = Stand::new();
        stand.live(7, start_of(7));
        stand.write(7, &text);
        stand.look_at(T + 1000);
        stand.next();
        assert!(stand.knows("a"), "{what}");
        for event in &stand.events {
            let time = event.time.unwrap();
            assert!(time >= ms(T) && time <= stand.now, "{what}: {event:?}");
        }
        let asks = usize::from(!what.contains("status"));
        assert_eq!(stand.facts("a").actions.len(), asks, "{what}");
        assert_ne!(stand.writers("a").last(), Some(&Writer::Gone), "{what}");
    }
    // RFC 3339 is a time as well.
    let mut stand = Stand::new();
    stand.live(7, start_of(7));
    stand.write(7, &plain.replace(&time, &format!(r#""statusUpdatedAt":"{}""#, ms(T - 7000))));
    stand.look_at(T);
    assert_eq!(stand.asked("a"), [(ActionKind::Permission, T - 7000)]);
}

#[test]
fn numbers_that_are_no_process_are_no_files_of_the_registry() {
    let mut stand = Stand::new();
    stand.exists = |_| Existence::There;
    for name in ["0", "-1", "2147483648", "99999999999999999999", "1.5", "", " 1", "1e3"] {
        let text = content(7, "a", "busy", T).replace(r#""pid":7,"#, "");
        fs::write(stand.folder().join(format!("{name}.json")), text).unwrap();
    }
    assert_eq!(stand.look_at(T), []);
}

#[test]
fn the_words_of_a_file_stay_in_it() {
    let mut stand = Stand::new();
    stand.live(7, start_of(7));
    let secret = "s3cret-words";
    let long = format!("{}{secret}", "i".repeat(60_000));
    let text = content(7, &long, "waiting", T)
        .replace("permission prompt", secret)
        .replace("/home/dev/project", &format!("/home/dev/{secret}/project"))
        .replace(r#""version""#, &format!(r#""name":"{secret}","version""#));
    stand.write(7, &text);
    stand.look_at(T);
    let told = format!("{:?}", stand.events);
    assert!(!told.contains(secret));
    assert!(stand.events.iter().all(|e| e.session.as_str().len() <= 200));
    let kinds: Vec<_> = stand
        .events
        .iter()
        .filter_map(|e| match e.fact {
            Fact::Dialog { kind, .. } => Some(kind),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, [ActionKind::Other], "a reason that is not known is one nevertheless");
}

#[test]
fn ten_thousand_files_are_bounded() {
    let mut stand = Stand::new();
    stand.exists = |_| Existence::There;
    stand.live(7, start_of(7));
    stand.status(7, "mine", "busy");
    stand.look_at(T);
    for pid in 100..10_100 {
        stand.write(pid, &content(pid, &format!("s{pid}"), "busy", T));
    }
    stand.next();
    let sessions: std::collections::BTreeSet<_> = stand.events.iter().map(|e| e.session.clone()).collect();
    assert_eq!(sessions.len(), 1024);
    assert!(stand.kept_bytes() < 256 << 10, "{}", stand.kept_bytes());
    assert_eq!(stand.writers("mine"), [Writer::Alive]);
    // What is known goes on to be followed.
    stand.status(7, "mine", "waiting");
    stand.next();
    assert_eq!(stand.asked("mine").len(), 1);
    for pid in 100..10_100 {
        stand.remove(pid);
    }
    stand.exists = |_| Existence::Absent;
    stand.restart();
    for _ in 0..15 {
        stand.next();
    }
    assert!(stand.kept_bytes() < 1024, "{}", stand.kept_bytes());
    assert_eq!(stand.writers("mine"), [Writer::Alive]);
}

#[test]
fn the_dead_take_no_room_from_the_living() {
    let mut stand = Stand::new();
    for pid in 100..1124 {
        stand.write(pid, &content(pid, &format!("s{pid}"), "idle", T));
    }
    stand.look_at(T);
    stand.live(7, start_of(7));
    stand.status(7, "a", "busy");
    stand.next();
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive]);
    assert!((100..1124).all(|pid| stand.writers(&format!("s{pid}")) == [Writer::Gone]), "each once");
}

#[test]
fn a_folder_may_be_missing_forbidden_or_none() {
    let mut stand = Stand::new();
    fs::remove_dir(stand.folder()).unwrap();
    assert_eq!(stand.look_at(T), []);
    fs::write(stand.folder(), "no folder").unwrap();
    assert_eq!(stand.next(), []);
    fs::remove_file(stand.folder()).unwrap();
    fs::create_dir(stand.folder()).unwrap();
    stand.live(7, start_of(7));
    stand.status(7, "a", "busy");
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive]);
    // Away with all its files, as when a disk is gone: no process left because of that, and none is said to have died.
    let aside = stand.agent.path().join("aside");
    fs::rename(stand.folder(), &aside).unwrap();
    assert_eq!(stand.next(), []);
    stand.kill(7);
    stand.next();
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Unknown]);
    fs::rename(&aside, stand.folder()).unwrap();
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Unknown, Writer::Gone]);
}

#[test]
fn a_file_that_may_not_be_read_is_asked_again() {
    let mut stand = Stand::new();
    stand.live(7, start_of(7));
    stand.status(7, "a", "busy");
    fs::set_permissions(stand.path(7), fs::Permissions::from_mode(0o000)).unwrap();
    // Whoever may read everything reads it at once.
    let may = fs::read(stand.path(7)).is_ok();
    stand.look_at(T);
    assert_eq!(stand.knows("a"), may);
    fs::set_permissions(stand.path(7), fs::Permissions::from_mode(0o600)).unwrap();
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive]);
}

#[test]
fn a_dialog_that_its_person_opened_is_no_request() {
    let mut stand = Stand::new();
    stand.live(7, start_of(7));
    let dialog = |at| content(7, "a", "waiting", at).replace("permission prompt", "dialog open");
    stand.status(7, "a", "idle");
    stand.look_at(T);
    stand.write(7, &dialog(T + 100));
    stand.next();
    stand.status(7, "a", "idle");
    stand.next();
    assert_eq!(stand.asked("a"), []);
    assert_eq!(stand.state("a"), "queued/starting");
    stand.status(7, "a", "busy");
    stand.next();
    let at = stand.now.as_millis();
    stand.write(7, &dialog(at));
    stand.next();
    assert_eq!(stand.asked("a"), [(ActionKind::Other, at)]);
}

#[test]
fn words_of_the_status_that_are_not_known_are_no_waiting() {
    let mut stand = Stand::new();
    stand.live(7, start_of(7));
    for (i, status) in ["busy", "shell", "idle", "dreaming", "waiting", "Waiting", ""].into_iter().enumerate()
    {
        stand.now = ms(T + 2000 * i as i64);
        stand.status(7, "a", status);
        stand.next();
        assert_eq!(stand.facts("a").actions.len(), usize::from(status == "waiting"), "{status}");
    }
}

#[test]
fn what_does_not_change_is_not_read_again() {
    let mut stand = Stand::new();
    stand.live(7, start_of(7));
    stand.status(7, "a", "busy");
    let file = fs::File::options().write(true).open(stand.path(7)).unwrap();
    let old = std::time::UNIX_EPOCH + Duration::from_millis((T - 60_000).unsigned_abs());
    file.set_modified(old).unwrap();
    stand.look_at(T);
    // Other bytes with the same size and modification time: the stamp says that there is nothing new.
    stand.write(7, &content(7, "b", "busy", T));
    file.set_modified(old).unwrap();
    stand.next();
    assert!(!stand.knows("b"));
    let whole = content(7, "a", "waiting", T + 1500);
    stand.write(7, &whole);
    stand.next();
    assert_eq!(stand.asked("a"), [(ActionKind::Permission, T + 1500)]);
}
