#![no_main]

#[path = "../bodies.rs"]
#[allow(dead_code, reason = "each target runs one body")]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::push_cloud_event(bytes));
