//! A server made by hand.

use agent_session_exporter::event::Timestamp;
use serde_json::{Value, json};

use super::folded::{Folded, words};
use super::play::Play;
use super::recorded::{DIRECTORY, Line};

const START: i64 = 1_795_965_361_000;

/// A server that says what the test lets it.
pub(crate) struct Told {
    pub(crate) play: Play,
    n: u64,
    pub(crate) at: i64,
    /// Nobody listens.
    pub(crate) unheard: bool,
    pub(crate) directory: &'static str,
}

impl Told {
    pub(crate) fn new() -> Self {
        let mut play = Play::new();
        play.connect(Timestamp::from_millis(START));
        Self { play, n: 0, at: START, unheard: false, directory: DIRECTORY }
    }

    /// One event, after some seconds.
    pub(crate) fn say(&mut self, after: i64, kind: &str, props: Value) -> &mut Self {
        self.at += after * 1000;
        self.n += 1;
        let stamp = (self.at - (26 << 36)) << 12 | i64::try_from(self.n % 4096).unwrap();
        let event =
            json!({ "id": format!("evt_{stamp:012x}x{}", self.n), "type": kind, "properties": props });
        let frame = match kind {
            "server.heartbeat" => json!({ "payload": event }),
            _ => json!({ "directory": self.directory, "project": "p", "payload": event }),
        };
        let line = Line { at: Timestamp::from_millis(self.at), frame };
        if self.unheard {
            self.play.missed(&line);
        } else {
            self.play.line(&line);
        }
        self
    }

    pub(crate) fn session(&mut self, id: &str, parent: Option<&str>) -> &mut Self {
        let mut info = json!({
            "id": id, "directory": self.directory, "version": "1.18.33", "agent": "build",
            "model": { "id": "main", "providerID": "fake" }, "time": { "created": self.at, "updated": self.at },
        });
        if let Some(parent) = parent {
            info["parentID"] = json!(parent);
        }
        self.say(0, "session.created", json!({ "sessionID": id, "info": info }))
    }

    pub(crate) fn prompt(&mut self, session: &str, id: &str) -> &mut Self {
        let info = json!({ "id": id, "sessionID": session, "role": "user", "time": { "created": self.at } });
        self.say(0, "message.updated", json!({ "sessionID": session, "info": info }));
        let part = json!({ "id": format!("{id}_p"), "messageID": id, "sessionID": session, "type": "text", "text": "x" });
        self.say(0, "message.part.updated", json!({ "sessionID": session, "part": part, "time": self.at }))
    }

    pub(crate) fn status(&mut self, session: &str, status: &str) -> &mut Self {
        self.say(0, "session.status", json!({ "sessionID": session, "status": { "type": status } }))
    }

    pub(crate) fn answer(&mut self, session: &str, id: &str, prompt: &str, more: Value) -> &mut Self {
        let mut info = json!({
            "id": id, "sessionID": session, "role": "assistant", "parentID": prompt, "modelID": "main",
            "providerID": "fake", "time": { "created": self.at },
        });
        for (name, value) in more.as_object().unwrap() {
            info[name] = value.clone();
        }
        self.say(0, "message.updated", json!({ "sessionID": session, "info": info }))
    }

    pub(crate) fn tool(
        &mut self,
        session: &str,
        message: &str,
        id: &str,
        tool: &str,
        state: Value,
    ) -> &mut Self {
        let part = json!({
            "id": id, "messageID": message, "sessionID": session, "type": "tool", "tool": tool, "callID": "c",
            "state": state,
        });
        self.say(0, "message.part.updated", json!({ "sessionID": session, "part": part, "time": self.at }))
    }

    pub(crate) fn works(&mut self, session: &str) -> &mut Self {
        self.session(session, None).prompt(session, "msg_1").status(session, "busy");
        self.answer(session, "msg_2", "msg_1", json!({}))
    }

    pub(crate) fn folded(&self) -> Folded {
        Folded::of(self.play.events.iter().map(|(_, event)| event))
    }

    pub(crate) fn state(&self, session: &str, later: i64) -> String {
        words(&self.folded().states(Timestamp::from_millis(self.at + later * 1000))[session])
    }
}
