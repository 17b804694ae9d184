//! What others see of a snapshot: pages, JSON answers, metrics. A view is made from one snapshot and the reader's
//! `now`; it opens no file, changes nothing and asks the owner task nothing.
//!
//! [`families`] names and defines the metrics, [`selection`] decides whose series exist, [`prometheus`] writes both
//! down; [`http`] answers everything else. Facts are made in the fold: a view that needs a number asks for a new fact
//! there.

mod auth;
pub mod explain;
pub mod families;
pub mod guard;
pub mod history;
pub mod http;
mod landing;
mod lines;
mod openapi;
mod orchestrations;
pub mod prometheus;
pub mod selection;
pub mod serve;
mod sessions;
pub mod status;
pub mod webconfig;
