//! `notify`: the receiver of webhooks behind the same guard as the exporter. It opens no store and no source.

use std::io::Write as _;

use anyhow::Context as _;
use tokio::sync::watch;

use super::{FLUSH_WITHIN, allowed_hosts, runtime, start_logging, stop_signal};
use crate::config::Config;
use crate::notify::{Limits, raise_samples, receiver};
use crate::views::guard::guard;
use crate::views::serve as web;
use crate::views::webconfig::WebConfig;

/// Takes webhooks until it is told to stop.
///
/// # Errors
/// When the address cannot be used. That the desktop cannot be reached is none: it may come.
pub fn notify(config: Config) -> anyhow::Result<()> {
    start_logging(&config);
    runtime()?.block_on(async {
        web::check_address(config.notify.listen_address, false, config.web.allow_remote)?;
        let socket = web::bind(config.notify.listen_address).await?;
        let address = socket.local_addr()?;
        let hosts = allowed_hosts(&config, &[address])?;
        let limits = Limits { per_minute: config.notify.per_minute, burst: config.notify.burst };
        let (router, owner) = receiver(limits);
        let owner = tokio::spawn(owner.run());
        let stop = watch::Sender::new(false);
        let router = guard(router, hosts);
        let server = tokio::spawn(web::serve(socket, router, WebConfig::default(), stop.subscribe()));
        // Nobody may be left to read it; that is no reason not to serve.
        let _ = writeln!(std::io::stdout(), "takes webhooks of Alertmanager at http://{address}/");
        stop_signal().await?;
        stop.send_replace(true);
        server.await.context("the server ended by a bug")??;
        if tokio::time::timeout(FLUSH_WITHIN, owner).await.is_err() {
            tracing::warn!("the desktop did not answer in time; what was held is lost");
        }
        Ok(())
    })
}

/// Raises an example of each kind; gives what was sent.
///
/// # Errors
/// When the desktop cannot be reached.
pub fn notify_test(config: Config) -> anyhow::Result<String> {
    start_logging(&config);
    Ok(runtime()?.block_on(raise_samples())?)
}
