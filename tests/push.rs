//! The push source on its router, with a stand-in for the owner task that answers receipts.

mod push {
    mod codes;
    mod forms;
    mod items;
    mod properties;
    mod stand;
    mod stdin;
}
