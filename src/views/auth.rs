//! Basic authentication. A wrong name costs as much as a wrong password, and a right pair costs bcrypt only once:
//! afterwards a keyed hash of it is remembered.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use siphasher::sip128::SipHasher24;
use tokio::sync::Semaphore;

use super::http::Refusal;

const REFUSED: Refusal =
    Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "a user name and a password are needed");
/// What is checked for a name that does not exist. No password is known to fit; if one did, it would not help.
const NOBODY: &str = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi";
/// Checks that run at once. Bcrypt is slow on purpose; guessing must not take the machine from the agents.
const MAX_CHECKS: usize = 1;
/// Credentials that are longer than this are wrong without a look.
const MAX_LENGTH: usize = 1024;

/// Names and bcrypt hashes.
pub(super) struct Users {
    hashes: BTreeMap<String, String>,
    /// Keyed hashes of pairs that were right; at most one for each user and spelling of the password.
    known: Mutex<HashSet<u128>>,
    key: [u8; 16],
    checks: Arc<Semaphore>,
}

/// A user whose entry cannot be used.
#[derive(Debug)]
pub(super) struct BadUser(pub(super) String);

// === impl Users ===

impl Users {
    /// From the configuration.
    pub(super) fn new(hashes: BTreeMap<String, String>) -> Result<Self, BadUser> {
        for (name, hash) in &hashes {
            if name.is_empty() || name.contains(':') || hash.parse::<bcrypt::HashParts>().is_err() {
                return Err(BadUser(name.clone()));
            }
        }
        let mut key = [0; 16];
        // The standard library keys its maps from the system's randomness; that is all the hash needs.
        key[..8].copy_from_slice(&RandomState::new().hash_one(0).to_le_bytes());
        key[8..].copy_from_slice(&RandomState::new().hash_one(1).to_le_bytes());
        Ok(Self { hashes, known: Mutex::default(), key, checks: Arc::new(Semaphore::new(MAX_CHECKS)) })
    }

    async fn admits(self: &Arc<Self>, headers: &HeaderMap) -> bool {
        let Some((name, password)) = credentials(headers) else { return false };
        let digest = self.digest(&name, &password);
        if self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(&digest) {
            return true;
        }
        let Ok(_permit) = self.checks.clone().acquire_owned().await else { return false };
        let users = self.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let hash = users.hashes.get(&name);
            let fits = bcrypt::verify(password, hash.map_or(NOBODY, String::as_str)).unwrap_or(false);
            fits && hash.is_some()
        });
        let right = checked.await.unwrap_or(false);
        if right {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            // Beyond 72 bytes bcrypt no longer looks, so one user can have many right spellings.
            if known.len() >= 4 * self.hashes.len() {
                known.clear();
            }
            known.insert(digest);
        }
        right
    }

    fn digest(&self, name: &str, password: &[u8]) -> u128 {
        let mut text = Vec::with_capacity(name.len() + password.len() + 1);
        text.extend_from_slice(name.as_bytes());
        // A name has no colon, so no two pairs give one text.
        text.push(b':');
        text.extend_from_slice(password);
        SipHasher24::new_with_key(&self.key).hash(&text).as_u128()
    }
}

fn credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || encoded.len() > MAX_LENGTH {
        return None;
    }
    let pair = STANDARD.decode(encoded.trim()).ok()?;
    let colon = pair.iter().position(|b| *b == b':')?;
    Some((String::from_utf8(pair[..colon].to_vec()).ok()?, pair[colon + 1..].to_vec()))
}

/// Lets only users through.
pub(super) async fn check(State(users): State<Arc<Users>>, request: Request, next: Next) -> Response {
    if users.admits(request.headers()).await {
        return next.run(request).await;
    }
    let ask = HeaderValue::from_static("Basic realm=\"agent-session-exporter\"");
    ([(header::WWW_AUTHENTICATE, ask)], REFUSED).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pair: &str) -> HeaderMap {
        let value = format!("Basic {}", STANDARD.encode(pair)).parse().unwrap();
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    }

    #[tokio::test]
    async fn only_the_right_pair_is_admitted_and_remembered() {
        let hash = bcrypt::hash("secret", 4).unwrap();
        let users = Arc::new(Users::new(BTreeMap::from([("alice".to_owned(), hash)])).unwrap());
        for wrong in ["alice:wrong", "bob:secret", "alice", ":secret", "alice:", "alice:secret "] {
            assert!(!users.admits(&headers(wrong)).await, "{wrong}");
        }
        assert!(!users.admits(&HeaderMap::new()).await);
        assert!(users.known.lock().unwrap().is_empty());
        assert!(users.admits(&headers("alice:secret")).await);
        assert_eq!(users.known.lock().unwrap().len(), 1);
        // With no check left, only what is remembered can be admitted.
        users.checks.close();
        assert!(users.admits(&headers("alice:secret")).await);
        assert!(!users.admits(&headers("alice:wrong")).await);
    }
}
