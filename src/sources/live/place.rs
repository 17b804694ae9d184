//! Where a server is and how to log in there.

use std::fmt;
use std::path::PathBuf;

use crate::event::Name;

/// The address of a server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Whether it is reached over TLS.
    pub tls: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// What stands before every path, without a slash at the end.
    pub prefix: String,
}

/// How to log in. What is secret is in files; only their names are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// User name.
    pub username: Option<String>,
    /// File with the password.
    pub password_file: Option<PathBuf>,
    /// File with a token.
    pub token_file: Option<PathBuf>,
}

/// Why a text is no address of a server. The text itself is not repeated: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// Not http or https.
    #[error("expected http://host:port or https://host:port")]
    Scheme,
    /// No host, or one that cannot be.
    #[error("the host cannot be read")]
    Host,
    /// No number a port can have.
    #[error("the port cannot be read")]
    Port,
    /// Secrets belong into files.
    #[error("a user or password in an address would be shown: use username and password_file")]
    Secret,
    /// Query or fragment.
    #[error("an address has no query and no fragment")]
    Query,
}

// === impl Place ===

impl Place {
    /// Reads `http://host:port`, with an optional path.
    ///
    /// # Errors
    /// The text is no such address.
    pub fn parse(text: &str) -> Result<Self, PlaceError> {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").ok_or(PlaceError::Scheme)?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(PlaceError::Scheme),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(PlaceError::Secret);
        }
        if rest.contains(['?', '#']) {
            return Err(PlaceError::Query);
        }
        let default = if tls { 443 } else { 80 };
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, behind) = v6.split_once(']').ok_or(PlaceError::Host)?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| PlaceError::Host)?;
                match behind.strip_prefix(':') {
                    Some(port) => (host, port.parse().map_err(|_| PlaceError::Port)?),
                    None if behind.is_empty() => (host, default),
                    None => return Err(PlaceError::Port),
                }
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, port.parse().map_err(|_| PlaceError::Port)?),
                None => (authority, default),
            },
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        if host.is_empty() || host.len() > 253 || !host.chars().all(plain) {
            return Err(PlaceError::Host);
        }
        if port == 0 {
            return Err(PlaceError::Port);
        }
        let prefix = path.trim_end_matches('/');
        if !prefix.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(PlaceError::Host);
        }
        Ok(Self { tls, host: host.to_ascii_lowercase(), port, prefix: prefix.to_owned() })
    }

    /// Host and port as they stand in a URL.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The server in a form that may be shown, as label and in the log.
    pub fn endpoint(&self) -> Name {
        Name::from(format!("{}{}", self.authority(), self.prefix).as_str())
    }

    /// What stands before every path of the server.
    pub fn base(&self) -> String {
        format!("{}://{}{}", if self.tls { "https" } else { "http" }, self.authority(), self.prefix)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let place = Place::parse("http://LocalHost:4096/").unwrap();
        assert_eq!(
            (place.base().as_str(), place.endpoint().as_str()),
            ("http://localhost:4096", "localhost:4096")
        );
        let place = Place::parse("https://agents.example/opencode/").unwrap();
        assert_eq!(place.base(), "https://agents.example:443/opencode");
        assert_eq!(Place::parse("http://[::1]:8765").unwrap().authority(), "[::1]:8765");
    }

    #[test]
    fn what_is_no_address_is_refused_without_repeating_it() {
        for (text, why) in [
            ("127.0.0.1:4096", PlaceError::Scheme),
            ("ftp://127.0.0.1", PlaceError::Scheme),
            ("http://", PlaceError::Host),
            ("http://a b:1", PlaceError::Host),
            ("http://[::1:80", PlaceError::Host),
            ("http://host:0", PlaceError::Port),
            ("http://host:99999", PlaceError::Port),
            ("http://user:secret@host:1", PlaceError::Secret),
            ("http://host:1/x?token=secret", PlaceError::Query),
        ] {
            let error = Place::parse(text).unwrap_err();
            assert_eq!(error, why, "{text}");
            assert!(!error.to_string().contains("secret"));
        }
    }
}
