//! CPU time of processes, and numbers that the environment sets.

use std::fs;
use std::time::Duration;

/// Ticks of the kernel's clock in a second, as `/proc` counts them on every architecture Linux has today.
const TICKS: f64 = 100.0;

/// CPU time of a process, and of its children that have ended. A tick is 10 ms.
pub fn spent(pid: &str) -> (Duration, Duration) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name may hold anything, a parenthesis too.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap() / TICKS;
    // Fields 14 to 17 of proc(5), of which the first two are behind us.
    let both = |at: usize| Duration::from_secs_f64(ticks(at) + ticks(at + 1));
    (both(11), both(13))
}

/// CPU time of all threads a process has now, to the nanosecond. Threads that ended are not in it.
pub fn spent_by_threads(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |task: std::io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
    };
    tasks.filter_map(of).sum()
}

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().unwrap_or_else(|_| panic!("{name}={v} is no number")))
}
