//! Whether a process lives: real ones, and every answer of `/proc` and `kill`.

use std::fs;
use std::os::unix::fs::symlink;

use agent_session_exporter::event::{Capability, Fact, Timestamp, TurnOutcome, Writer};
use agent_session_exporter::sources::claude_code::{Existence, Registry};
use agent_session_exporter::sources::files::Live as _;

use super::stand::{BOOT_ID, BOOT_MS, NAMESPACE, Stand, T, content, ms, reducer, source, start_of};

const FOREIGN: &str = "pid:[4026532999]";

/// A stand with one busy session whose turn is open, seen once; the process lives.
fn busy() -> Stand {
    let mut stand = Stand::new();
    stand.live(7, start_of(7));
    stand.status(7, "a", "busy");
    stand.look_at(T);
    stand.turn("a", T, true);
    stand
}

#[test]
fn a_real_process_that_is_killed_is_gone_within_a_look() {
    let agent = tempfile::tempdir().unwrap();
    let folder = agent.path().join("sessions");
    fs::create_dir(&folder).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a process to be killed")]
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start = stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(19).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    let domain = format!("linux:{}:{}", boot.trim(), namespace.display());
    let text = content(pid, "real", "busy", T)
        .replace(&start_of(pid).to_string(), start)
        .replace(&format!("linux:{BOOT_ID}:{NAMESPACE}"), &domain);
    fs::write(folder.join(format!("{pid}.json")), text).unwrap();

    let mut registry = Registry::new(agent.path(), source(), reducer(), None);
    let look = |registry: &mut Registry, at: i64| -> Vec<Writer> {
        let mut out = Vec::new();
        registry.look(ms(at), &mut out);
        let writer = |e: &_| match e {
            Fact::Writer(writer) => Some(*writer),
            _ => None,
        };
        out.iter().filter_map(|e| writer(&e.fact)).collect()
    };
    assert_eq!(look(&mut registry, T), [Writer::Alive]);
    assert_eq!(look(&mut registry, T + 1000), []);
    child.kill().unwrap();
    // Not collected yet, so there is still a process of that number: it is dead all the same.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(stat.contains(") Z "), "{stat}");
    assert_eq!(look(&mut registry, T + 2000), [Writer::Gone]);
    child.wait().unwrap();
    assert_eq!(look(&mut registry, T + 3000), []);
    // Another exporter that never saw it alive, now that the number is free.
    let mut registry = Registry::new(agent.path(), source(), reducer(), None);
    assert_eq!(look(&mut registry, T + 4000), [Writer::Gone]);
}

#[test]
fn a_number_that_was_given_to_another_process_is_no_sign_of_life() {
    let mut stand = busy();
    assert_eq!(stand.state("a"), "running/working");
    stand.live(7, 999_999);
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Gone]);
    assert_eq!(stand.state("a"), "failed/process_gone");
    // Also where it was never seen alive.
    let mut stand = Stand::new();
    stand.live(7, 999_999);
    stand.status(7, "a", "busy");
    stand.look_at(T + 1000);
    assert_eq!(stand.writers("a"), [Writer::Gone]);
}

#[test]
fn a_start_time_of_another_kind_proves_no_death() {
    let text = content(7, "a", "busy", T);
    let own = format!(r#""procStart":"{}""#, start_of(7));
    // Milliseconds since the epoch, nanoseconds since boot, no number at all.
    for other in [T.to_string(), "1500070000000".to_owned(), "Sun Nov 29 15:26:40".to_owned()] {
        let mut stand = Stand::new();
        stand.live(7, start_of(7));
        stand.write(7, &text.replace(&own, &format!(r#""procStart":"{other}""#)));
        stand.look_at(T);
        stand.next();
        assert_eq!(stand.writers("a"), [], "{other}");
        // That there is no process of this number is a proof whatever its start.
        stand.kill(7);
        stand.next();
        assert_eq!(stand.writers("a"), [Writer::Gone], "{other}");
    }
}

#[test]
fn a_start_time_that_is_left_out_makes_no_other_process() {
    let bare = |at| content(7, "a", "idle", at).replace(&format!(r#""procStart":"{}","#, start_of(7)), "");
    let mut stand = Stand::new();
    stand.live(7, start_of(7));
    stand.write(7, &bare(T));
    stand.look_at(T);
    assert_eq!(stand.writers("a"), [], "its number may be another's");
    stand.status(7, "a", "busy");
    stand.next();
    stand.write(7, &bare(T + 1500));
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive]);
    stand.kill(7);
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Gone]);
}

#[test]
fn hidden_and_foreign_processes_live() {
    // As with `hidepid`, or another user's: /proc shows nothing, kill says EPERM.
    let mut stand = Stand::new();
    stand.exists = |_| Existence::There;
    stand.status(7, "a", "busy");
    stand.look_at(T);
    assert_eq!(stand.writers("a"), [Writer::Alive]);
    stand.live(7, start_of(7));
    stand.next();
    stand.kill(7);
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive], "what is hidden is not dead");
    // The real question, about a process that is somebody else's or nobody's but is there.
    let real = agent_session_exporter::sources::claude_code::Probe::default();
    assert_eq!((real.exists)(1), Existence::There);
    assert_eq!((real.exists)(i32::MAX), Existence::Absent);
    for wrong in [0, -1, i32::MIN] {
        assert_eq!((real.exists)(wrong), Existence::CannotTell);
    }
}

#[test]
fn what_cannot_be_checked_is_not_dead() {
    let absent: fn(i32) -> Existence = |_| Existence::Absent;
    let silent: fn(i32) -> Existence = |_| Existence::CannotTell;
    let own = format!("linux:{BOOT_ID}:{NAMESPACE}");
    let cases = [
        ("another namespace", format!("linux:{BOOT_ID}:{FOREIGN}"), absent, false),
        ("another machine", own.replace(BOOT_ID, "00000000-1111-2222-3333-444444444444"), absent, false),
        ("no word about it", String::new(), absent, false),
        ("another system", "darwin:x".to_owned(), absent, false),
        ("the kernel is silent", own.clone(), silent, false),
        ("ours", own.clone(), absent, true),
        ("ours, the boot is not named", own.replace(BOOT_ID, "boot-id"), absent, true),
    ];
    for (what, domain, exists, dead) in cases {
        let mut stand = Stand::new();
        stand.exists = exists;
        stand.write(7, &content(7, "a", "busy", T).replace(&own, &domain));
        stand.look_at(T);
        stand.turn("a", T, true);
        for _ in 0..3 {
            stand.next();
        }
        let expected: &[Writer] = if dead { &[Writer::Gone] } else { &[] };
        assert_eq!(stand.writers("a"), expected, "{what}");
        let state = if dead { "failed/process_gone" } else { "running/working" };
        assert_eq!(stand.state("a"), state, "{what}");
        let sees = stand.facts("a").info.capabilities.unwrap();
        assert_eq!(sees.has(Capability::Liveness), dead, "{what}");
        // The number with the start time, seen once, shows that it means the same here.
        stand.exists = absent;
        stand.restart();
        if !dead && what != "another namespace" && what != "another machine" {
            stand.live(7, start_of(7));
            stand.next();
            assert!(stand.facts("a").info.capabilities.unwrap().has(Capability::Liveness), "{what}");
            stand.kill(7);
            stand.next();
            assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Gone], "{what}");
        }
    }
}

#[test]
fn a_proof_of_life_that_ends_is_taken_back_and_nothing_more() {
    let mut stand = busy();
    assert_eq!(stand.writers("a"), [Writer::Alive]);
    stand.kill(7);
    stand.exists = |_| Existence::CannotTell;
    stand.restart();
    stand.next();
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Unknown]);
    assert_eq!(stand.state("a"), "running/working");
    stand.live(7, start_of(7));
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Unknown, Writer::Alive]);
}

#[test]
fn a_start_of_the_machine_ends_everything_before_it() {
    let mut stand = busy();
    stand.kill(7);
    stand.boot("00000000-1111-2222-3333-444444444444");
    stand.restart();
    let day = 24 * 3_600_000;
    // Seen alive before, so that it was this machine's: dead whatever its boot is called now.
    stand.booted = T + day - 60_000;
    stand.look_at(T + day);
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Gone]);
    let (_, at) = stand.facts("a").writer.unwrap();
    assert_eq!(at, ms(stand.booted), "it died when the machine did, at the latest");
    assert_eq!(stand.state("a"), "failed/process_gone");

    // Never seen: the entry says another boot, and nothing was written there since this one.
    let mut stand = Stand::new();
    let other = "99999999-1111-2222-3333-444444444444";
    let before = BOOT_MS - 3_600_000;
    stand.write(
        8,
        &content(8, "old", "busy", before)
            .replace(BOOT_ID, other)
            .replace(&T.to_string(), &before.to_string()),
    );
    stand.write(9, &content(9, "elsewhere", "busy", T).replace(BOOT_ID, other));
    stand.turn("old", before, true);
    stand.look_at(T + 5000);
    assert_eq!(stand.writers("old"), [Writer::Gone]);
    let (_, at) = stand.facts("old").writer.unwrap();
    assert!((at.as_millis() - BOOT_MS).abs() < 50, "it died when the machine did, not now: {at}");
    assert_eq!(stand.state("old"), "failed/process_gone");
    assert_eq!(stand.writers("elsewhere"), [], "another machine, that has the same folder");
}

#[test]
fn what_was_left_behind_long_ago_tells_nothing_about_now() {
    let mut stand = Stand::new();
    stand.status(7, "a", "busy");
    assert_eq!(stand.look_at(T + 8 * 24 * 3_600_000), []);
    stand.remove(7);
    assert_eq!(stand.next(), []);
}

#[test]
fn a_session_with_two_processes_lives_as_long_as_one_of_them() {
    let mut stand = busy();
    stand.live(8, start_of(8));
    stand.status(8, "a", "waiting");
    stand.next();
    stand.status(7, "a", "waiting");
    stand.next();
    assert_eq!(stand.facts("a").actions.len(), 2, "each asks for itself");
    stand.status(7, "a", "busy");
    stand.next();
    assert_eq!(stand.facts("a").actions.len(), 1);
    assert_eq!(stand.state("a"), "waiting_for_user/permission");
    stand.kill(7);
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive]);
    stand.status(8, "a", "idle");
    stand.next();
    assert!(stand.facts("a").actions.is_empty());
    stand.kill(8);
    stand.remove(8);
    for _ in 0..3 {
        stand.next();
    }
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Left], "the last one decides");

    // The other way round.
    let mut stand = busy();
    stand.live(8, start_of(8));
    stand.status(8, "a", "idle");
    stand.next();
    stand.kill(8);
    stand.remove(8);
    for _ in 0..3 {
        stand.next();
    }
    assert_eq!(stand.writers("a"), [Writer::Alive]);
    stand.kill(7);
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Gone]);
}

#[test]
fn who_takes_a_dead_session_over_does_not_work_at_its_turn() {
    for at_once in [false, true] {
        let mut stand = busy();
        stand.kill(7);
        if !at_once {
            stand.next();
            assert_eq!(stand.state("a"), "failed/process_gone");
            stand.restart();
            stand.next();
        }
        stand.now = ms(stand.now.as_millis() + 1000);
        stand.live(8, start_of(8));
        stand.status(8, "a", "idle");
        stand.next();
        assert_eq!(stand.writers("a").last(), Some(&Writer::Alive));
        assert_eq!(stand.state("a"), "failed/interrupted", "at once: {at_once}");
        let ends = |e: &&agent_session_exporter::event::Event| {
            matches!(e.fact, Fact::TurnEnded { outcome: TurnOutcome::Interrupted, .. })
        };
        assert_eq!(stand.events.iter().filter(ends).count(), 1);
        let begins = stand.now.as_millis() + 1000;
        stand.turn("a", begins, true);
        assert_eq!(stand.state("a"), "running/working");
    }
}

#[test]
fn a_file_that_somebody_else_removed_kills_nobody() {
    let mut stand = busy();
    stand.status(7, "a", "waiting");
    stand.next();
    stand.remove(7);
    for _ in 0..50 {
        stand.next();
    }
    assert_eq!(stand.writers("a"), [Writer::Alive]);
    assert_eq!(stand.state("a"), "waiting_for_user/permission", "it may be on its way out");
    for _ in 0..20 {
        stand.next();
    }
    assert_eq!(stand.state("a"), "running/working", "what it asks is not known any more");
    // It comes back with its next status.
    stand.status(7, "a", "busy");
    stand.next();
    stand.remove(7);
    for _ in 0..70 {
        stand.next();
    }
    // How it ends then is not known either.
    stand.kill(7);
    stand.next();
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Alive, Writer::Unknown]);
    assert_eq!(stand.state("a"), "running/working");
}

#[test]
fn a_proc_that_is_not_there_proves_no_death() {
    let mut stand = Stand::new();
    fs::remove_dir_all(stand.proc.path().join("self")).unwrap();
    stand.status(7, "a", "busy");
    stand.look_at(T);
    stand.next();
    assert_eq!(stand.writers("a"), []);
    fs::create_dir_all(stand.proc.path().join("self/ns")).unwrap();
    symlink(NAMESPACE, stand.proc.path().join("self/ns/pid")).unwrap();
    stand.next();
    assert_eq!(stand.writers("a"), [Writer::Gone]);
    assert!(stand.facts("a").writer.unwrap().1 > Timestamp::default());
}
