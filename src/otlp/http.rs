//! OTLP over HTTP with protobuf. Redirects are not followed, proxies of the environment are not used, answers are bounded.

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use reqwest::{Url, redirect};

use super::answer::{Answer, MAX_ANSWER, Why, retry_after};
use super::send::{AGENT, SetupError};
use super::settings::{CONNECT_WITHIN, Target};
use super::tls;
use crate::clock::Clock;
use crate::spans::Signal;

#[derive(Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    url: Url,
    headers: HeaderMap,
    gzip: bool,
    timeout: Duration,
    clock: Clock,
}

// === impl Http ===

impl Http {
    pub(super) fn new(target: &Target, clock: Clock) -> Result<Self, SetupError> {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        for (name, value) in target.headers.iter() {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| SetupError::Header)?;
            let mut value = HeaderValue::from_str(value).map_err(|_| SetupError::Header)?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        if target.gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        // Without TLS nothing is asked of the system's certificates, which a small container may not have.
        let tls = if target.is_tls() { tls::config(&target.tls, &["http/1.1"])? } else { tls::none()? };
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_WITHIN)
            .tcp_keepalive(Duration::from_secs(30))
            .pool_max_idle_per_host(1)
            .referer(false)
            .build()
            .map_err(|_| SetupError::Address)?;
        let (url, gzip, timeout) = (target.url.clone(), target.gzip, target.timeout);
        Ok(Self { client, url, headers, gzip, timeout, clock })
    }

    pub(super) async fn send(&self, signal: Signal, body: Bytes) -> Answer {
        let body = if self.gzip { pack(&body) } else { body };
        let request = self.client.post(self.url.clone()).headers(self.headers.clone());
        let sent = request.timeout(self.timeout).body(body).send().await;
        match sent {
            Ok(response) => self.read(signal, response).await,
            Err(e) => of_error(&e),
        }
    }

    async fn read(&self, signal: Signal, mut response: reqwest::Response) -> Answer {
        let status = response.status();
        let text = |name| response.headers().get(name).and_then(|v: &HeaderValue| v.to_str().ok());
        if !status.is_success() {
            let after = text(RETRY_AFTER).and_then(|text| retry_after(text, self.clock.now()));
            return Answer::of_status(status.as_u16(), text(CONTENT_TYPE).unwrap_or_default(), after);
        }
        let kind = text(CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase();
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(None) => break,
                Ok(Some(chunk)) if body.len() + chunk.len() > MAX_ANSWER => {
                    return Answer::Misled(Why::NotOtlp);
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Err(e) => return of_error(&e),
            }
        }
        match kind.split(';').next().unwrap_or_default().trim() {
            // Something in between that says yes to everything must not make spans vanish.
            _ if body.is_empty() => Answer::TAKEN,
            "application/json" => Answer::of_json(signal, &body),
            "application/x-protobuf" | "application/protobuf" | "application/octet-stream" | "" => {
                Answer::of_body(signal, &body)
            }
            _ => Answer::Misled(Why::NotOtlp),
        }
    }
}

fn pack(body: &[u8]) -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let packed = encoder.write_all(body).and_then(|()| encoder.finish());
    packed.expect("a vector takes all that is written").into()
}

fn of_error(error: &reqwest::Error) -> Answer {
    if tls::is_cause(error) {
        return Answer::Misled(Why::Certificate);
    }
    let why = if error.is_timeout() { Why::Timeout } else { Why::Connection };
    Answer::Later { why, after: None }
}
