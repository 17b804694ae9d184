//! State files that are not what they should be: in use, foreign, cut, with flipped bits, of another version or key.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use agent_session_exporter::event::{Event, Fact, Usage};
use agent_session_exporter::store::{OpenError, Opened, db};
use redb::TableDefinition;

use crate::common::disk::Rng;
use crate::common::owner::{KEY, Life, event, facts, now, options, with_id};

const FLIPS: u64 = 120;

fn tokens(id: u64) -> Event {
    let fact = Fact::Usage(Usage { input: 1, ..Usage::default() });
    let mut event = with_id(id, event("push", &format!("s{}", id % 5), now(), fact));
    event.counting = agent_session_exporter::event::Counting::Always;
    event
}

fn open(folder: &Path) -> Opened {
    db::open_folder(folder, KEY, now()).unwrap()
}

/// Fills a folder, with rows of most tables; returns the file as it was before the last commit.
fn fill(folder: &Path) -> Vec<u8> {
    let life = Life::with(open(folder), options());
    for id in 0..50 {
        life.pushed(vec![tokens(id)]).unwrap();
    }
    life.read(vec![event("files", "f", now(), Fact::SessionStarted(Default::default()))], 1, 9);
    life.end();
    let closed = fs::read(db::file_path(folder)).unwrap();
    // As `kill -9` would leave it: the last event is in the journal only.
    let life = Life::with(open(folder), options());
    life.pushed(vec![tokens(50)]).unwrap();
    let left = fs::read(db::file_path(folder)).unwrap();
    life.end();
    fs::write(db::file_path(folder), left).unwrap();
    closed
}

fn aside(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n.contains("unreadable")).collect()
}

/// Whatever lies there, a store comes of it that works; says whether the file was set aside.
fn works(folder: &Path) -> bool {
    let opened = open(folder);
    let set_aside = opened.set_aside;
    let life = Life::with(opened, options());
    life.pushed(vec![tokens(1_000)]).unwrap();
    life.end();
    let life = Life::with(open(folder), options());
    assert!(facts(&life.snapshot(), "push", "s0").is_some());
    life.end();
    set_aside
}

#[test]
fn a_second_process_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path());
    assert!(matches!(db::open_folder(folder.path(), KEY, now()), Err(OpenError::InUse)));
    let life = Life::with(opened, options());
    assert!(matches!(db::open_folder(folder.path(), KEY, now()), Err(OpenError::InUse)));
    life.end();
    assert!(aside(folder.path()).is_empty());
    assert!(!works(folder.path()));
}

#[test]
fn files_are_for_their_owner_only() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("state/agent-session-exporter");
    let key = db::prepare_folder(&folder).unwrap();
    assert_eq!(db::prepare_folder(&folder).unwrap(), key, "the key stays");
    fill(&folder);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join(db::FILE)), 0o600);
    assert_eq!(mode(&folder.join(db::KEY_FILE)), 0o600);
    let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    for name in [db::FILE, db::KEY_FILE] {
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    db::prepare_folder(&folder).unwrap();
    drop(open(&folder));
    assert_eq!(mode(&folder.join(db::FILE)), 0o600);
    assert_eq!(mode(&folder.join(db::KEY_FILE)), 0o600);
}

#[test]
fn half_a_key_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(db::KEY_FILE), b"short").unwrap();
    let key = db::prepare_folder(folder.path()).unwrap();
    assert_eq!(db::prepare_folder(folder.path()).unwrap(), key);
}

#[test]
fn what_is_no_state_file_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let good = fs::read(db::file_path(folder.path())).unwrap();
    let cut = |n: usize| good[..n].to_vec();
    let zeroed = vec![0; good.len()];
    let foreign = b"SQLite format 3\0 and so on".repeat(500);
    for bytes in [foreign, zeroed, cut(good.len() / 2), cut(4096), cut(100), cut(1)] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(db::file_path(folder.path()), &bytes).unwrap();
        assert!(works(folder.path()), "{} bytes were taken for a state file", bytes.len());
        let kept = aside(folder.path());
        assert_eq!(kept.len(), 1);
        // Whether redb writes to a file that it then refuses is its business; that it is kept is ours.
        assert!(!fs::read(folder.path().join(&kept[0])).unwrap().is_empty());
    }
}

#[test]
fn another_version_or_key_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let before = open(folder.path()).contents.created;
    let opened = db::open_folder(folder.path(), KEY + 1, now().plus(5)).unwrap();
    assert!(opened.set_aside && opened.contents.sessions.is_empty());
    assert!(opened.contents.created > before, "a new counting epoch");
    drop(opened);
    let database = redb::Database::create(db::file_path(folder.path())).unwrap();
    let tx = database.begin_write().unwrap();
    {
        let mut meta = tx.open_table(TableDefinition::<&str, &[u8]>::new("meta")).unwrap();
        let identity = [&(db::FORMAT + 1).to_le_bytes()[..], &KEY.to_le_bytes()[..]].concat();
        meta.insert("identity", identity.as_slice()).unwrap();
    }
    tx.commit().unwrap();
    drop(database);
    assert!(works(folder.path()));
    assert_eq!(aside(folder.path()).len(), 2);
}

#[test]
fn flipped_bits_are_noticed_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let closed = fill(folder.path());
    let good = fs::read(db::file_path(folder.path())).unwrap();
    let contents = |folder: &Path| format!("{:?}", open(folder).contents);
    let wanted = contents(folder.path());
    // After a crash redb takes a last commit that does not add up for one that was cut, and goes back by one.
    let before = {
        let folder = tempfile::tempdir().unwrap();
        fs::write(db::file_path(folder.path()), &closed).unwrap();
        contents(folder.path())
    };
    assert_ne!(wanted, before);
    let used: Vec<usize> = good.iter().enumerate().filter(|(_, b)| **b != 0).map(|(i, _)| i).collect();
    let mut rng = Rng::new(11);
    let mut set_aside = 0;
    for i in 0..FLIPS {
        let mut bytes = good.clone();
        // Mostly where something is written; the header's first bytes among them.
        let at = match i {
            0..16 => i as usize,
            _ if i % 4 == 0 => rng.below(good.len() as u64) as usize,
            _ => used[rng.below(used.len() as u64) as usize],
        };
        bytes[at] ^= 1 << rng.below(8);
        let folder = tempfile::tempdir().unwrap();
        fs::write(db::file_path(folder.path()), &bytes).unwrap();
        let opened = open(folder.path());
        if opened.set_aside {
            set_aside += 1;
        } else {
            let found = format!("{:?}", opened.contents);
            assert!(found == wanted || found == before, "byte {at} was believed");
        }
        drop(opened);
        if i % 4 == 0 {
            works(folder.path());
        }
    }
    assert!(set_aside > 10, "only {set_aside} of {FLIPS} were noticed");
}
