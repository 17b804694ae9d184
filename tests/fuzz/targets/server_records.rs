#![no_main]

use agent_session_exporter_fuzz as bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::server_records(bytes));
