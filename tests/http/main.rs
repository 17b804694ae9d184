//! The read-only routes, asked as a reader would: on the router, and once on a socket with TLS and passwords.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod document;
mod guarded;
mod make;
mod pushed;
mod routes;
mod socket;
