//! The way to the desktop: `org.freedesktop.Notifications` on the session bus. What is told and when is no matter of this
//! file. Specification: <https://specifications.freedesktop.org/notification-spec/latest/>.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::time::Duration;

use serde::Serialize;
use zbus::{Connection, Message, Variant};

use super::notice::{Abilities, Notice};
use super::policy::Shown;

/// Name of the interface and of whoever offers it.
const NOTIFICATIONS: &str = "org.freedesktop.Notifications";
const PATH: &str = "/org/freedesktop/Notifications";
/// Under which name ours are shown.
const APP: &str = "Coding agents";
/// How long anybody may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// It stays as long as the desktop thinks right.
const AS_USUAL: i32 = -1;

/// Why something was not shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no bus.
    #[error("the session bus cannot be reached (DBUS_SESSION_BUS_ADDRESS names it): {0}")]
    NoBus(zbus::Error),
    /// It took too long to reach the bus.
    #[error("the session bus does not answer")]
    SlowBus,
    /// The bus is there, but nobody on it shows notifications, or refuses to.
    #[error("nobody on the session bus shows notifications: {0}")]
    NoServer(zbus::Error),
}

/// The connection, made when it is first needed and made anew after it was lost.
#[derive(Debug, Default)]
pub(super) struct Desktop {
    bus: Option<Connection>,
    /// Counts the connections.
    connection: u64,
}

/// What was sent.
#[derive(Debug, Serialize)]
pub(super) struct Sent {
    #[serde(rename = "id", serialize_with = "id_alone")]
    pub(super) shown: Shown,
    summary: String,
    body: String,
    urgency: &'static str,
    icon: &'static str,
    sound: Option<&'static str>,
}

// === impl Desktop ===

impl Desktop {
    /// Shows a notice.
    pub(super) async fn raise(&mut self, notice: &Notice) -> Result<Sent, Error> {
        // Asked each time: it is one small question, and another desktop may have taken over.
        let abilities = self.call("GetCapabilities", &()).await?;
        let abilities: Vec<String> = abilities.body().deserialize().map_err(Error::NoServer)?;
        let can = |what: &str| abilities.iter().any(|a| a == what);
        let abilities = Abilities { markup: can("body-markup"), links: can("body-hyperlinks") };
        let body = notice.body(abilities);
        let (urgency, icon) = (notice.urgency, notice.urgency.icon());
        let sound = notice.sound.map(|s| s.as_str());
        let mut hints: HashMap<&str, Variant<'_>> = HashMap::new();
        hints.insert("urgency", Variant::from(urgency as u8));
        match sound {
            Some(name) => hints.insert("sound-name", Variant::from(name)),
            // Some desktops make a sound for each notification.
            None => hints.insert("suppress-sound", Variant::from(true)),
        };
        // No actions: what is clicked would come back to us, and we do nothing.
        let actions: [&str; 0] = [];
        let asked = (APP, 0_u32, icon, notice.title.as_str(), body.as_str(), &actions[..], hints, AS_USUAL);
        let answer = self.call("Notify", &asked).await?;
        let id = answer.body().deserialize().map_err(Error::NoServer)?;
        let by = answer.header().sender().map(ToString::to_string).unwrap_or_default();
        let shown = Shown { id, by, connection: self.connection };
        Ok(Sent { shown, summary: notice.title.clone(), body, urgency: urgency.as_str(), icon, sound })
    }

    /// Takes a notification away. Where that fails, it is gone, or nobody can do anything about it.
    pub(super) async fn close(&self, shown: &Shown) {
        // A desktop that was started anew counts anew: the number may be that of somebody else's notification. So the very
        // process that gave it is asked, and nobody where that one is gone.
        let Some(bus) = self.bus.as_ref().filter(|_| shown.connection == self.connection) else { return };
        let closed = bus.call_method(
            Some(shown.by.as_str()),
            PATH,
            Some(NOTIFICATIONS),
            "CloseNotification",
            &shown.id,
        );
        if let Err(error) = closed.await {
            tracing::debug!(%error, "a notification could not be taken away");
        }
    }

    /// Calls the desktop; a connection that turns out to be lost is made anew once.
    async fn call<B>(&mut self, method: &str, body: &B) -> Result<Message, Error>
    where
        B: Serialize + zbus::wire::DynamicType,
    {
        let known = self.bus.is_some();
        match self.call_once(method, body).await {
            Err(Error::NoServer(zbus::Error::InputOutput(e))) if known && e.kind() != ErrorKind::TimedOut => {
                self.bus = None;
                self.call_once(method, body).await
            }
            answer => answer,
        }
    }

    async fn call_once<B>(&mut self, method: &str, body: &B) -> Result<Message, Error>
    where
        B: Serialize + zbus::wire::DynamicType,
    {
        let bus = match &self.bus {
            Some(bus) => bus,
            None => {
                let bus = tokio::time::timeout(ANSWER_WITHIN, connect()).await;
                self.connection += 1;
                self.bus.insert(bus.map_err(|_| Error::SlowBus)?.map_err(Error::NoBus)?)
            }
        };
        let answer = bus.call_method(Some(NOTIFICATIONS), PATH, Some(NOTIFICATIONS), method, body).await;
        answer.map_err(Error::NoServer)
    }
}

async fn connect() -> zbus::Result<Connection> {
    zbus::connection::Builder::session().method_timeout(ANSWER_WITHIN).build().await
}

fn id_alone<S: serde::Serializer>(shown: &Shown, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u32(shown.id)
}
