//! Why an item or a whole request is not taken. The words are labels and parts of answers, so the set is closed;
//! nothing of what was sent is ever repeated in them.

use crate::event::TimeError;
use crate::sources::arguments::Unusable;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        /// Why something was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $variant),+ }

        impl Reason {
            /// Every reason, for the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word in labels and answers.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

reasons! {
    /// The item is not JSON.
    MalformedJson = "malformed_json",
    /// JSON, but not an object with the envelope's fields, or `data` is no object.
    BadShape = "bad_shape",
    /// The item is longer than one may be.
    LineTooLong = "line_too_long",
    /// Arguments are nested too deeply.
    TooDeep = "too_deep",
    /// `schemaVersion` (or CloudEvents' `specversion`) is not one this version reads.
    BadSchemaVersion = "bad_schema_version",
    /// `source` is missing or not `[a-z0-9_]{1,32}`.
    BadSource = "bad_source",
    /// `source` is the name of a built-in source.
    ReservedSource = "reserved_source",
    /// `sessionId` is missing or empty.
    MissingSession = "missing_session",
    /// `type` is missing or empty.
    MissingType = "missing_type",
    /// `data` lacks a field that its type needs.
    MissingField = "missing_field",
    /// A field has a value it cannot have.
    BadValue = "bad_value",
    /// A time that is neither RFC 3339 nor a number.
    BadTime = "bad_time",
    /// A time in seconds, micro- or nanoseconds instead of milliseconds.
    TimeUnit = "time_unit",
    /// The body cannot be parsed at all.
    MalformedBody = "malformed_body",
    /// The body did not arrive in time.
    SlowBody = "slow_body",
    /// The body is larger than it may be.
    TooLarge = "too_large",
    /// The body holds more items than it may.
    TooManyItems = "too_many_items",
    /// Content type or encoding is none of the supported ones.
    UnsupportedType = "unsupported_type",
    /// The bearer token is missing or wrong.
    Unauthorized = "unauthorized",
    /// There is no room for another batch now.
    NoRoom = "no_room",
    /// The store cannot commit.
    Unavailable = "unavailable",
}

impl From<Unusable> for Reason {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::NoObject => Self::BadValue,
            Unusable::TooDeep => Self::TooDeep,
        }
    }
}

impl From<TimeError> for Reason {
    fn from(error: TimeError) -> Self {
        match error {
            TimeError::Unit => Self::TimeUnit,
            TimeError::Format => Self::BadTime,
        }
    }
}
