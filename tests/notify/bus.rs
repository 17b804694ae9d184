//! A bus of the test's own, and a desktop on it that remembers what it was asked for.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::runtime::Runtime;
use zbus::{Connection, Message, MessageStream, OwnedVariant};

use crate::common;

const NAME: &str = "org.freedesktop.Notifications";
/// What most desktops can do.
pub(crate) const USUAL: &[&str] = &["actions", "body", "body-markup", "persistence", "sound"];

/// A real `dbus-daemon` with a socket and a configuration of its own.
pub(crate) struct Bus {
    daemon: Option<common::Ending>,
    folder: tempfile::TempDir,
}

/// A desktop that shows notifications to nobody.
pub(crate) struct Desktop {
    /// What it was asked for, in order.
    asked: Arc<Mutex<Vec<Asked>>>,
    _runtime: Runtime,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Asked {
    Notify(Notification),
    Close(u32),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Notification {
    pub(crate) id: u32,
    pub(crate) app: String,
    pub(crate) replaces: u32,
    pub(crate) icon: String,
    pub(crate) summary: String,
    pub(crate) body: String,
    pub(crate) actions: Vec<String>,
    pub(crate) urgency: u8,
    pub(crate) sound: Option<String>,
    pub(crate) suppress_sound: bool,
    pub(crate) expires: i32,
}

impl Bus {
    pub(crate) fn start() -> Self {
        let mut bus = Self::absent();
        bus.begin();
        bus
    }

    /// A place where no bus is yet.
    pub(crate) fn absent() -> Self {
        Self { daemon: None, folder: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("bus")
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:path={}", self.socket().display())
    }

    #[expect(clippy::disallowed_methods, reason = "tests run a bus; the program runs nothing")]
    pub(crate) fn begin(&mut self) {
        let config = self.folder.path().join("bus.conf");
        let text = format!(
            r#"<busconfig><type>session</type><listen>{}</listen><auth>EXTERNAL</auth>
               <policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
                 <allow own="*"/></policy></busconfig>"#,
            self.address()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = std::process::Command::new("dbus-daemon");
        command.arg("--nofork").arg(format!("--config-file={}", config.display()));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.expect("dbus-daemon is needed (Debian: dbus-daemon)");
        self.daemon = Some(common::Ending(child));
        common::wait_until("the bus listens", || {
            std::os::unix::net::UnixStream::connect(self.socket()).is_ok()
        });
    }

    pub(crate) fn end(&mut self) {
        self.daemon = None;
        let _ = std::fs::remove_file(self.socket());
    }
}

impl Desktop {
    pub(crate) fn start(bus: &Bus, abilities: &'static [&'static str]) -> Self {
        Self::start_counting_from(bus, abilities, 1)
    }

    /// One whose next notification has this number.
    pub(crate) fn start_counting_from(bus: &Bus, abilities: &'static [&'static str], first: u32) -> Self {
        Self::start_with(bus, first, abilities, true)
    }

    /// One that takes the name and answers nothing.
    pub(crate) fn start_silent(bus: &Bus) -> Self {
        Self::start_with(bus, 1, USUAL, false)
    }

    fn start_with(bus: &Bus, first: u32, abilities: &'static [&'static str], answers: bool) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (address, remember) = (bus.address(), asked.clone());
        let connection = runtime.block_on(async {
            let connection = zbus::connection::Builder::address(address.as_str())
                .method_timeout(Duration::from_secs(20))
                .build()
                .await
                .unwrap();
            let calls = MessageStream::from(&connection);
            if answers {
                tokio::spawn(answer(connection.clone(), calls, first, abilities, remember));
            }
            connection.request_name(NAME).await.unwrap();
            connection
        });
        if !answers {
            // It has to stay on the bus, too.
            runtime.spawn(async move {
                let _connection = connection;
                std::future::pending::<()>().await;
            });
        }
        Self { asked, _runtime: runtime }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// What it was asked to show.
    pub(crate) fn notifications(&self) -> Vec<Notification> {
        let only = |asked| match asked {
            Asked::Notify(notification) => Some(notification),
            Asked::Close(_) => None,
        };
        self.asked().into_iter().filter_map(only).collect()
    }

    /// What it was asked to take away.
    pub(crate) fn closed(&self) -> Vec<u32> {
        let only = |asked| match asked {
            Asked::Close(id) => Some(id),
            Asked::Notify(_) => None,
        };
        self.asked().into_iter().filter_map(only).collect()
    }
}

async fn answer(
    connection: Connection,
    mut calls: MessageStream,
    first: u32,
    abilities: &'static [&'static str],
    asked: Arc<Mutex<Vec<Asked>>>,
) {
    let mut id = first;
    while let Some(Ok(call)) = calls.next().await {
        let header = call.header();
        let member = header.member().map(ToString::to_string).unwrap_or_default();
        if header.interface().is_none_or(|interface| interface != NAME) {
            continue;
        }
        match member.as_str() {
            "GetCapabilities" => connection.reply(&header, &abilities).await.unwrap(),
            "Notify" => {
                asked.lock().unwrap().push(Asked::Notify(notification(&call, id)));
                connection.reply(&header, &id).await.unwrap();
                id += 1;
            }
            "CloseNotification" => {
                asked.lock().unwrap().push(Asked::Close(call.body().deserialize().unwrap()));
                connection.reply(&header, &()).await.unwrap();
            }
            other => panic!("nobody should call {other}"),
        }
    }
}

type Arguments = (String, u32, String, String, String, Vec<String>, HashMap<String, OwnedVariant>, i32);

fn notification(call: &Message, id: u32) -> Notification {
    let body = call.body();
    assert_eq!(body.signature().to_string(), "(susssasa{sv}i)", "the signature of the specification");
    let (app, replaces, icon, summary, body, actions, hints, expires): Arguments =
        body.deserialize().unwrap();
    let known = ["urgency", "sound-name", "suppress-sound"];
    assert!(hints.keys().all(|k| known.contains(&k.as_str())), "{hints:?}");
    let urgency = u8::try_from(&*hints["urgency"]).unwrap();
    let sound = hints.get("sound-name").map(|s| <&str>::try_from(&**s).unwrap().to_owned());
    let suppress_sound = hints.get("suppress-sound").is_some_and(|s| bool::try_from(&**s).unwrap());
    Notification { id, app, replaces, icon, summary, body, actions, urgency, sound, suppress_sound, expires }
}
