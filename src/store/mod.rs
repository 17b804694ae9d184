//! Keeping: one owner task folds events, commits them, then publishes; see [`owner`].
//!
//! [`db`] is the file (redb), [`journal`] the form in which a commit's events lie in it, [`dedup`] the window of
//! event ids that are known, [`sessions`] the sessions in memory, [`spool`] what waits to be sent. Files are 0600 in a 0700 folder; nothing in them is
//! content.

pub mod db;
pub mod dedup;
pub mod journal;
pub mod offline;
pub mod owner;
pub mod sessions;
pub mod spool;

pub use self::db::{Backend, Db, OpenError, Opened};
pub use self::owner::{Options, Store, spawn};
