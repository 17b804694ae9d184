//! Everything that is read: pages, JSON answers, metrics. A view is made from one snapshot and the reader's `now`;
//! it opens no file and asks the owner task nothing.

mod auth;
pub mod explain;
pub mod guard;
pub mod http;
mod landing;
mod openapi;
pub mod serve;
mod sessions;
pub mod status;
pub mod webconfig;
