//! A bus or a desktop that is not there, goes away, comes back, or says nothing.

use std::time::{Duration, Instant};

use crate::bus::{Bus, Desktop, USUAL};
use crate::{Receiver, command, common, recording};

#[test]
fn without_a_bus_alertmanager_is_to_try_again() {
    let mut bus = Bus::absent();
    let receiver = Receiver::start(&bus, &[]);
    for _ in 0..3 {
        let answer = receiver.post(&recording("waits"));
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert_eq!(answer.json()["reason"], "no_desktop");
        assert!(answer.text().contains("session bus"), "{}", answer.text());
    }
    assert_eq!(receiver.logged("WARN"), 1, "said once");
    // What asks for nothing is no loss.
    assert_eq!(receiver.take(&recording("waits_resolved")), [0, 0, 0, 1]);
    bus.begin();
    let answer = receiver.post(&recording("waits"));
    assert_eq!(answer.status, 503, "a bus without a desktop: {}", answer.text());
    let desktop = Desktop::start(&bus, USUAL);
    assert_eq!(receiver.take(&recording("waits")), [1, 0, 0, 0]);
    assert_eq!(desktop.notifications().len(), 1);
    assert_eq!((receiver.logged("WARN"), receiver.logged("can be reached again")), (1, 1));
}

#[test]
fn a_bus_that_begins_anew_is_found() {
    let mut bus = Bus::start();
    let first = Desktop::start(&bus, USUAL);
    let receiver = Receiver::start(&bus, &[]);
    assert_eq!(receiver.take(&recording("waits")), [1, 0, 0, 0]);
    drop(first);
    bus.end();
    assert_eq!(receiver.post(&recording("failed")).status, 503);
    bus.begin();
    let second = Desktop::start(&bus, USUAL);
    assert_eq!(receiver.take(&recording("failed")), [1, 0, 0, 0]);
    // The second desktop counts from 1 as well: that number is now another notification.
    assert_eq!(receiver.take(&recording("waits_resolved")), [0, 0, 1, 0]);
    assert_eq!((second.notifications().len(), second.closed().len()), (1, 0));
}

#[test]
fn a_desktop_that_takes_over_is_not_asked_to_close_what_another_showed() {
    let bus = Bus::start();
    let first = Desktop::start_counting_from(&bus, USUAL, 7);
    let receiver = Receiver::start(&bus, &[]);
    assert_eq!(receiver.take(&recording("waits")), [1, 0, 0, 0]);
    drop(first);
    let second = Desktop::start_counting_from(&bus, USUAL, 7);
    assert_eq!(receiver.take(&recording("waits_resolved")), [0, 0, 1, 0]);
    assert_eq!(receiver.take(&recording("waits_anew")), [1, 0, 0, 0]);
    assert_eq!((second.notifications().len(), second.closed().len()), (1, 0));
}

#[test]
fn a_desktop_that_does_not_answer_holds_nobody_up() {
    let bus = Bus::start();
    let _silent = Desktop::start_silent(&bus);
    let receiver = Receiver::start(&bus, &[]);
    let asked = Instant::now();
    assert_eq!(receiver.post(&recording("crowd")).status, 503);
    assert!(asked.elapsed() < Duration::from_secs(9), "once for all of its alerts: {:?}", asked.elapsed());
}

#[test]
fn serving_sessions_does_not_touch_the_bus() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("bus");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = format!("unix:path={}", socket.display());
    let once = common::command(folder.path(), &folder.path().join("state"))
        .env("DBUS_SESSION_BUS_ADDRESS", &address)
        .arg("once")
        .output()
        .unwrap();
    assert!(once.status.success());
    assert!(listener.accept().is_err(), "nobody came");
    // The same address is used where it should be.
    let mut asks = command(&folder, &address);
    let _asks = common::Ending(crate::spawn(asks.arg("--test"), std::process::Stdio::null()));
    common::wait_until("somebody comes", || listener.accept().is_ok());
}
