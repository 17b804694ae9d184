//! Where the kernel does not tell what changes: looking is enough, and it is said that we look.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent_session_exporter::sources::files::FileSource;

use crate::harness::{COUNTING, Home, append, lines};

/// Log lines of this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// How many lines of a source hold this text.
    fn count(&self, source: &str, text: &str) -> usize {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        log.lines().filter(|l| l.contains(&format!("source=\"{source}\"")) && l.contains(text)).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_watches_roots_are_polled_and_said_to_be_until_there_are_some() {
    let log = Log::default();
    let writer = log.clone();
    // One for the process: the source runs on a thread of its own.
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    const POLLED: FileSource = FileSource { name: "polled", ..COUNTING };

    let mut home = Home::new();
    let room = Arc::new(AtomicUsize::new(1));
    let rooms = room.clone();
    home.surroundings.kernel.room = Arc::new(move || rooms.load(Ordering::SeqCst));
    let path = home.session("a");
    append(&path, lines(1, 1));
    let mut running = home.start_with(POLLED, 64);
    running.scanned().await;
    assert_eq!(running.home().watched(), (0, 2));
    // In a folder that is not watched, which is found by looking, as is what is written there.
    let other = running.home().path("sessions/2026/09/r-b.jsonl");
    std::fs::create_dir_all(other.parent().unwrap()).unwrap();
    let began = Instant::now();
    append(&other, "other\n");
    running.events(2).await;
    append(&path, lines(2, 2));
    running.events(3).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    running.rest(Duration::from_secs(3)).await;
    assert_eq!(log.count("polled", "folder is polled instead of watched"), 2, "once for each root");
    assert_eq!(log.count("polled", "fs.inotify.max_user_watches"), 2);
    assert_eq!(log.count("polled", " WARN "), 2);

    room.store(usize::MAX, Ordering::SeqCst);
    let until = Instant::now() + Duration::from_secs(10);
    while running.home().watched() != (2, 0) {
        assert!(Instant::now() < until, "{:?}", running.home().watched());
        running.rest(Duration::from_millis(100)).await;
    }
    assert_eq!(log.count("polled", "folder is watched again"), 2);
    let log = log.0.lock().unwrap().clone();
    assert!(!String::from_utf8(log).unwrap().contains(home_of(&path)), "no path is in the log");
    running.end().await;
    assert_eq!(home.watched(), (0, 0));
}

/// The temporary folder's name.
fn home_of(path: &std::path::Path) -> &str {
    path.components().nth(2).unwrap().as_os_str().to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_file_system_is_polled_although_it_can_be_watched() {
    let mut home = Home::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let (asks, network) = (asked.clone(), Arc::new(AtomicBool::new(true)));
    home.surroundings.kernel.is_network = Arc::new(move |_| {
        asks.fetch_add(1, Ordering::SeqCst);
        network.load(Ordering::SeqCst)
    });
    let path = home.session("a");
    append(&path, lines(1, 1));
    let mut running = home.start();
    running.scanned().await;
    assert_eq!(running.home().watched(), (0, 2));
    append(&path, lines(2, 2));
    running.events(2).await;
    running.rest(Duration::from_secs(2)).await;
    assert_eq!(asked.load(Ordering::SeqCst), 1, "once for each device");
    running.end().await;
}
