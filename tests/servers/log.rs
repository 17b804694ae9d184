//! What this program logs, as a person reads it.

use std::sync::{Arc, Mutex, OnceLock};

use tracing_subscriber::fmt::MakeWriter;

/// What was logged by this program.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Lines of the log about an endpoint, from info up.
pub(crate) fn logged(endpoint: &str) -> Vec<String> {
    let log = log().0.lock().unwrap();
    String::from_utf8_lossy(&log).lines().filter(|line| line.contains(endpoint)).map(str::to_owned).collect()
}

/// The log, which is written from the first call on.
pub(crate) fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Log(Arc::default());
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter("agent_session_exporter=info")
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        log
    })
}
