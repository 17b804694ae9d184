//! The API document. `openapi.json` is written by hand; what depends on the running exporter is filled in here, and
//! the schema of the status answer is taken from its own file, so that it exists once.

use serde_json::{Value, json};

use super::http::Options;
use super::status;

/// The document as it is checked in.
const DOCUMENT_JSON: &str = include_str!("openapi.json");
/// The metrics path in it.
const METRICS_PATH: &str = "/metrics";
/// The path that only exists where events can be pushed.
const PUSH_PATH: &str = "/api/v1/events";

/// The document of a router with these options.
pub(super) fn document(options: &Options) -> Vec<u8> {
    let mut document: Value = serde_json::from_str(DOCUMENT_JSON).expect("checked in and read by a test");
    document["info"]["version"] = json!(env!("CARGO_PKG_VERSION"));
    let mut status: Value = serde_json::from_str(status::SCHEMA_JSON).expect("checked in and read by a test");
    if let Some(schema) = status.as_object_mut() {
        // Inside another document these two would change what references mean.
        schema.remove("$schema");
        schema.remove("$id");
    }
    document["components"]["schemas"]["Status"] = status;
    if let Some(paths) = document["paths"].as_object_mut() {
        if let Some(metrics) = paths.remove(METRICS_PATH) {
            paths.insert(options.metrics_path.clone(), metrics);
        }
        if !options.push_enabled {
            paths.remove(PUSH_PATH);
        }
    }
    document.to_string().into_bytes()
}
