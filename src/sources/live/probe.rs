//! `check`: which servers of a source answer.

use std::time::Duration;

use super::servers::{Change, Servers};
use super::{AskError, Configured, LiveSource};
use crate::ingest::client::Client;
use crate::sources::live::run::{client_of, headers_of};

/// Patience of `check` with one question.
const WITHIN: Duration = Duration::from_secs(3);

/// Whether one of the paths answers that tell a server of this source from anything else.
///
/// # Errors
/// None does: the last reason.
pub(super) async fn answers(source: &LiveSource, client: &Client, within: Duration) -> Result<(), AskError> {
    let mut why = AskError::Protocol;
    for path in source.health {
        match client.ask(path, None, within).await {
            Ok(answer) if (200..300).contains(&answer.status) => return Ok(()),
            Ok(answer) => why = AskError::of_status(answer.status),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// One line per server: where, and whether it answers.
pub async fn probe(source: &LiveSource, configured: &Configured) -> Vec<String> {
    let mut servers = Servers::new(source, configured);
    let change = servers.look();
    let mut out = Vec::new();
    if let Some(path) = &configured.servers_file {
        let what = match change {
            Change::New => "read",
            Change::Partly => "read; some of its entries are no addresses",
            Change::Same => "nothing there yet",
            Change::Broken => "cannot be read as a list of servers",
        };
        out.push(format!("{} ({what})", path.display()));
    }
    for server in servers.wanted() {
        let mut found = "does not answer".to_owned();
        match headers_of(source, &server).and_then(|h| Ok((client_of(&server, &h, &configured.trust)?, h))) {
            Ok((client, _)) => {
                for path in source.health {
                    match client.ask(path, None, WITHIN).await {
                        Ok(answer) if (200..300).contains(&answer.status) => {
                            found = "answers".to_owned();
                            break;
                        }
                        Ok(answer) if matches!(answer.status, 401 | 403) => {
                            found = "refuses the login".to_owned();
                        }
                        Ok(answer) => found = format!("answers with status {}", answer.status),
                        Err(error) => {
                            if found == "does not answer" {
                                found = error.to_string();
                            }
                        }
                    }
                }
            }
            Err(error) => found = error.to_string(),
        }
        out.push(format!("{} ({found})", server.place.endpoint().as_str()));
    }
    out
}
