//! The push source on its router, with a stand-in for the owner task that answers receipts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod push {
    mod codes;
    mod forms;
    mod items;
    mod properties;
    mod stand;
    mod stdin;
    mod traced;
}
