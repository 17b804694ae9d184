//! Many alerts at once.

use crate::bus::{Bus, Desktop, USUAL};
use crate::{Receiver, changed, common, recording};

#[test]
fn a_crowd_is_told_in_one_and_none_of_it_is_lost() {
    let bus = Bus::start();
    let desktop = Desktop::start(&bus, USUAL);
    let receiver = Receiver::start(&bus, &["--notify.per-minute", "120"]);
    assert_eq!(receiver.take(&recording("crowd")), [3, 17, 0, 0]);
    assert_eq!(desktop.notifications().len(), 3, "the burst, not more");
    common::wait_until("the rest is told", || desktop.notifications().len() > 3);
    let told = desktop.notifications();
    // 17 over the limit and 5 that Alertmanager left out.
    assert_eq!(told[3].summary, "and 22 more alerts");
    assert_eq!((told[3].urgency, told[3].suppress_sound), (1, true));
    assert!(told[3].body.ends_with("\nand 17 more") && told[3].body.lines().count() == 6, "{}", told[3].body);
    assert_eq!(receiver.take(&recording("crowd")), [0, 0, 0, 20]);
    // Twice as long as it takes to tell one.
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(desktop.notifications().len(), 4, "the crowd is known, with those left out");
}

#[test]
fn what_waits_is_told_before_the_end() {
    let bus = Bus::start();
    let desktop = Desktop::start(&bus, USUAL);
    let mut receiver = Receiver::start(&bus, &["--notify.per-minute", "1", "--notify.burst", "1"]);
    assert_eq!(receiver.take(&recording("failed")), [1, 0, 0, 0]);
    assert_eq!(receiver.take(&recording("waits")), [0, 1, 0, 0]);
    let other = changed("waits", |body| body["alerts"][0]["fingerprint"] = "other".into());
    assert_eq!(receiver.take(&other), [0, 1, 0, 0]);
    assert_eq!(desktop.notifications().len(), 1);
    assert!(receiver.terminate());
    let told = desktop.notifications();
    assert_eq!((told.len(), told[1].summary.as_str()), (2, "and 2 more alerts"));
    assert_eq!(told[1].sound.as_deref(), Some("message-new-instant"), "somebody waits among them");
}

#[test]
fn what_is_over_before_it_was_told_is_not_told() {
    let bus = Bus::start();
    let desktop = Desktop::start(&bus, USUAL);
    let mut receiver = Receiver::start(&bus, &["--notify.per-minute", "1", "--notify.burst", "1"]);
    assert_eq!(receiver.take(&recording("failed")), [1, 0, 0, 0]);
    assert_eq!(receiver.take(&recording("waits")), [0, 1, 0, 0]);
    assert_eq!(receiver.take(&recording("waits_resolved")), [0, 0, 1, 0]);
    assert!(receiver.terminate());
    assert_eq!(desktop.asked().len(), 1);
}
