//! Reading JSON of which little is needed: fields stay raw until one is looked at, so that a field of an unexpected
//! type loses that field and not the record. No meaning here.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::DecodeError;
use crate::event::Timestamp;

/// A field that is looked at only where its kind of record has it.
pub(super) type Raw<'a> = Option<&'a RawValue>;

/// Declares objects by their fields, each raw; `= "…"` where the wire name is no identifier of ours.
macro_rules! shapes {
    ($($(#[$meta:meta])* $name:ident { $($field:ident $(= $wire:literal)?),+ $(,)? })+) => {$(
        $(#[$meta])*
        #[derive(serde::Deserialize, Default)]
        pub(super) struct $name<'a> {
            $(#[serde(borrow, default $(, rename = $wire)?)] pub(super) $field: $crate::sources::shape::Raw<'a>,)+
        }
    )+};
}

pub(crate) use shapes;

/// Text that borrows where it has no escapes; `Option<Cow<str>>` alone would always copy.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The field as `T`, or `None` where it is absent or something else.
pub(super) fn read<'a, T: Deserialize<'a>>(raw: Raw<'a>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// The field as an object, or one without fields. A list is none: serde would take it for fields in order.
pub(super) fn object<'a, T: Deserialize<'a> + Default>(raw: Raw<'a>) -> T {
    read(raw.filter(|r| r.get().starts_with('{'))).unwrap_or_default()
}

/// The field's text.
pub(super) fn text(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    read::<Text<'_>>(raw).map(|t| t.0)
}

/// The field's text, empty where it has none.
pub(super) fn word(raw: Raw<'_>) -> Cow<'_, str> {
    text(raw).unwrap_or_default()
}

/// Nobody counts beyond this; sums of such numbers stay far from the end of their range.
const MAX_COUNT: f64 = 1e12;

/// The field as a number of things; negative ones and impossible ones are none.
pub(super) fn count(raw: Raw<'_>) -> u64 {
    match read::<f64>(raw) {
        Some(n) if n > 0.0 && n <= MAX_COUNT => n as u64,
        _ => 0,
    }
}

/// The field as RFC 3339.
pub(super) fn moment(raw: Raw<'_>) -> Option<Timestamp> {
    Timestamp::parse(&text(raw)?).ok()
}

/// The field as epoch milliseconds.
pub(super) fn millis(raw: Raw<'_>) -> Option<Timestamp> {
    Timestamp::from_number(read(raw)?).ok()
}

/// The field as epoch seconds.
pub(super) fn seconds(raw: Raw<'_>) -> Option<Timestamp> {
    Timestamp::from_number(read::<f64>(raw)? * 1000.0).ok()
}

/// The blocks of a text field that may also be a list of `{type, text}`, in order.
pub(super) fn blocks<'a>(raw: Raw<'a>) -> Vec<Cow<'a, str>> {
    #[derive(Deserialize)]
    struct Block<'a> {
        #[serde(borrow, default)]
        text: Raw<'a>,
    }
    if let Some(whole) = text(raw) {
        return vec![whole];
    }
    read::<Vec<Block<'a>>>(raw).unwrap_or_default().into_iter().filter_map(|b| text(b.text)).collect()
}

/// Reads a whole line as `T`.
///
/// # Errors
/// Not JSON, or no object.
pub(super) fn from_line<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    // Only objects are records; a sequence would otherwise be read as a struct's fields in order.
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        let valid = serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok();
        return Err(if valid { DecodeError::Shape } else { DecodeError::Json });
    }
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => DecodeError::Shape,
        _ => DecodeError::Json,
    })
}
