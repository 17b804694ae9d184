//! Who may ask, judged by headers. A page in a browser can make requests to this machine: under a name of its own
//! that suddenly resolves to 127.0.0.1 (the `Host` check), or across origins (the `Origin` check). Passwords and
//! certificates are no matter of this file.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, Version, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use super::http::Refusal;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

const NO_HOST: Refusal = Refusal::new(StatusCode::BAD_REQUEST, "bad_host", "one Host header is needed");
const HOST: Refusal = Refusal::new(
    StatusCode::FORBIDDEN,
    "host_not_allowed",
    "this Host is not allowed; names besides loopback and the listen address go to allowed_hosts",
);
const ORIGIN: Refusal =
    Refusal::new(StatusCode::FORBIDDEN, "cross_origin", "requests from pages of other origins are refused");

/// The hosts under which the exporter may be addressed. Loopback always is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts {
    names: Vec<(String, Option<u16>)>,
    addresses: Vec<IpAddr>,
    any_address: bool,
    any: bool,
    https: bool,
}

/// Host and port of a `Host` header or of an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authority {
    host: String,
    port: Option<u16>,
}

// === impl AllowedHosts ===

impl AllowedHosts {
    /// Loopback and the addresses listened on. An unspecified one (`0.0.0.0`) stands for every address of the
    /// machine; names are not included, because a name is what rebinding needs.
    pub fn new(listen: &[SocketAddr]) -> Self {
        Self {
            addresses: listen.iter().map(SocketAddr::ip).collect(),
            any_address: listen.iter().any(|a| a.ip().is_unspecified()),
            ..Self::default()
        }
    }

    /// Adds a configured name or address, with or without a port. False if it is neither.
    pub fn allow(&mut self, host: &str) -> bool {
        let Some(authority) = Authority::parse(host) else { return false };
        self.names.push((authority.host, authority.port));
        true
    }

    /// Allows every host: the user switched the check off.
    pub fn allow_any(&mut self) {
        self.any = true;
    }

    /// Whether the exporter serves TLS, which decides what counts as its own origin.
    pub fn set_https(&mut self, https: bool) {
        self.https = https;
    }

    fn allows(&self, asked: &Authority) -> bool {
        if self.any || asked.host == "localhost" {
            return true;
        }
        if let Some(ip) = asked.address()
            && (ip.is_loopback() || self.any_address || self.addresses.contains(&ip))
        {
            return true;
        }
        self.names.iter().any(|(name, port)| *name == asked.host && (port.is_none() || *port == asked.port))
    }

    fn check(
        &self,
        method: &Method,
        uri: &Uri,
        version: Version,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().ok().and_then(Authority::parse).ok_or(NO_HOST)?,
            // Before 1.1 there was no Host; browsers have long stopped to speak that.
            (None, _) if version <= Version::HTTP_10 => {
                return Self::check_origin_without_host(method, headers);
            }
            _ => return Err(NO_HOST),
        };
        // A request line may name a host too, and then that one counts.
        let target = match uri.authority() {
            Some(named) => Authority::parse(named.as_str()).ok_or(NO_HOST)?,
            None => host.clone(),
        };
        if !self.allows(&host) || !self.allows(&target) {
            return Err(HOST);
        }
        if changes_nothing(method) || self.same_origin(headers, &host) { Ok(()) } else { Err(ORIGIN) }
    }

    fn check_origin_without_host(method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
        let from_page = headers.contains_key(header::ORIGIN) || headers.contains_key(SEC_FETCH_SITE);
        if from_page && !changes_nothing(method) { Err(ORIGIN) } else { Ok(()) }
    }

    /// Whether the request comes from no page at all or from one of ours.
    fn same_origin(&self, headers: &HeaderMap, host: &Authority) -> bool {
        let scheme = if self.https { "https://" } else { "http://" };
        let default_port = if self.https { 443 } else { 80 };
        let own = |value: &axum::http::HeaderValue| {
            let origin = value.to_str().ok().and_then(|v| v.strip_prefix(scheme)).and_then(Authority::parse);
            origin.is_some_and(|o| {
                o.host == host.host && o.port.unwrap_or(default_port) == host.port.unwrap_or(default_port)
            })
        };
        let ours =
            |value: &axum::http::HeaderValue| [&b"same-origin"[..], b"none"].contains(&value.as_bytes());
        headers.get_all(header::ORIGIN).iter().all(own) && headers.get_all(SEC_FETCH_SITE).iter().all(ours)
    }
}

// === impl Authority ===

impl Authority {
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (inside, after) = rest.split_once(']')?;
                inside.parse::<std::net::Ipv6Addr>().ok()?;
                (inside, after.strip_prefix(':').or_else(|| after.is_empty().then_some(""))?)
            }
            None => text.split_once(':').unwrap_or((text, "")),
        };
        let port = if port.is_empty() { None } else { Some(port.parse().ok()?) };
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let known = |b: u8| b.is_ascii_alphanumeric() || b"-._:".contains(&b);
        (!host.is_empty() && host.bytes().all(known)).then_some(Self { host, port })
    }

    fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok().map(|ip: IpAddr| ip.to_canonical())
    }
}

/// Puts the checks in front of every route of this router, its fallbacks included.
pub fn guard(router: Router, hosts: AllowedHosts) -> Router {
    router.layer(from_fn_with_state(Arc::new(hosts), check))
}

async fn check(State(hosts): State<Arc<AllowedHosts>>, request: Request, next: Next) -> Response {
    match hosts.check(request.method(), request.uri(), request.version(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

const fn changes_nothing(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(hosts: &AllowedHosts, text: &str) -> bool {
        Authority::parse(text).is_some_and(|a| hosts.allows(&a))
    }

    #[test]
    fn loopback_needs_no_configuration() {
        let hosts = AllowedHosts::new(&[]);
        for host in [
            "localhost",
            "LOCALHOST:10077",
            "localhost.",
            "127.0.0.1:1",
            "127.8.9.1",
            "[::1]:10077",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(allows(&hosts, host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[2001:db8::1]",
            "0.0.0.0",
            "2130706433",
            "localhost:x",
            "user@localhost",
            "",
            "[::1",
            "[::1]x",
        ] {
            assert!(!allows(&hosts, host), "{host}");
        }
    }

    #[test]
    fn what_is_listened_on_may_be_asked_for() {
        let hosts = AllowedHosts::new(&["10.0.0.1:10077".parse().unwrap()]);
        assert!(allows(&hosts, "10.0.0.1:10077") && !allows(&hosts, "10.0.0.2:10077"));
        let everywhere = AllowedHosts::new(&["[::]:10077".parse().unwrap()]);
        assert!(allows(&everywhere, "10.0.0.2") && !allows(&everywhere, "box.example"));
    }

    #[test]
    fn configured_names_are_allowed() {
        let mut hosts = AllowedHosts::default();
        assert!(hosts.allow("Box.Example") && hosts.allow("other.example:8080") && !hosts.allow("http://x/"));
        assert!(allows(&hosts, "box.example:1") && allows(&hosts, "other.example:8080"));
        assert!(!allows(&hosts, "other.example") && !allows(&hosts, "x.box.example"));
        hosts.allow_any();
        assert!(allows(&hosts, "anything.example"));
    }
}
