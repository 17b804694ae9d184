//! Reading JSON of which little is needed: fields stay raw until one is looked at, so that a field of an unexpected
//! type loses that field and not the record. No meaning here.

use std::borrow::Cow;

use serde::Deserialize;

use super::DecodeError;
use super::walk::{Walk, string_end};
use crate::event::Timestamp;

/// A value as it is spelled. It is one as far as its ends go; what is inside is checked when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Json<'a>(&'a str);

/// A field that is looked at only where its kind of record has it; `null` is none.
pub(super) type Raw<'a> = Option<Json<'a>>;

/// An object by its fields, each raw.
pub(super) trait Shape<'a>: Default {
    /// Takes a field in, if it is one of its own.
    fn take(&mut self, name: &str, value: Raw<'a>);
}

/// Declares objects by their fields; `= "…"` where the wire name is no identifier of ours.
macro_rules! shapes {
    ($($(#[$meta:meta])* $name:ident { $($field:ident $(= $wire:literal)?),+ $(,)? })+) => {$(
        $(#[$meta])*
        #[derive(Default)]
        pub(super) struct $name<'a> {
            $(pub(super) $field: $crate::sources::shape::Raw<'a>,)+
        }

        impl<'a> $crate::sources::shape::Shape<'a> for $name<'a> {
            fn take(&mut self, name: &str, value: $crate::sources::shape::Raw<'a>) {
                $(
                    if name == $crate::sources::shape::wire_name!($field $($wire)?) {
                        self.$field = value;
                        return;
                    }
                )+
            }
        }
    )+};
}

/// How a field is spelled on the wire.
macro_rules! wire_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $wire:literal) => {
        $wire
    };
}

pub(crate) use shapes;
pub(crate) use wire_name;

// === impl Json ===

impl<'a> Json<'a> {
    /// The spelling.
    pub(super) fn get(self) -> &'a str {
        self.0
    }

    fn of(text: &'a str) -> Raw<'a> {
        (text != "null").then_some(Self(text))
    }
}

/// The field as `T`, or `None` where it is absent or something else.
pub(super) fn read<'a, T: Deserialize<'a>>(raw: Raw<'a>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// JSON that stands in a text.
pub(super) fn json(text: &str) -> Raw<'_> {
    Json::of(text.trim_ascii())
}

/// The members of an object, none where the field is something else.
pub(super) fn pairs<'a>(raw: Raw<'a>) -> Vec<(&'a str, Raw<'a>)> {
    let mut walk = Walk::new(raw.map_or("", Json::get));
    let mut all = Vec::new();
    if walk.open(b'{').is_some() {
        while let Some((name, value)) = walk.member() {
            all.push((name, Json::of(value)));
        }
    }
    all
}

/// The field as an object, or `None` where it is something else.
pub(super) fn shape<'a, T: Shape<'a>>(raw: Raw<'a>) -> Option<T> {
    let text = raw?.get();
    let mut object = T::default();
    let end = members(text, &mut object)?;
    text[end..].trim_ascii().is_empty().then_some(object)
}

/// The field as an object, or one without fields.
pub(super) fn object<'a, T: Shape<'a>>(raw: Raw<'a>) -> T {
    shape(raw).unwrap_or_default()
}

/// The elements of a list, none where the field is something else.
pub(super) fn elements<'a>(raw: Raw<'a>) -> Vec<Raw<'a>> {
    let mut walk = Walk::new(raw.map_or("", Json::get));
    let mut all = Vec::new();
    if walk.open(b'[').is_some() {
        while let Some(value) = walk.element() {
            all.push(Json::of(value));
        }
    }
    all
}

/// The elements of a list that are objects.
pub(super) fn list<'a, T: Shape<'a>>(raw: Raw<'a>) -> Vec<T> {
    elements(raw).into_iter().filter_map(shape).collect()
}

/// Takes the members of an object in; where it ends, or `None` if it is none.
fn members<'a, T: Shape<'a>>(text: &'a str, object: &mut T) -> Option<usize> {
    let mut walk = Walk::new(text);
    walk.open(b'{')?;
    while let Some((name, value)) = walk.member() {
        if name.contains('\\') {
            let spelled: String = serde_json::from_str(&format!("\"{name}\"")).ok()?;
            object.take(&spelled, Json::of(value));
        } else {
            object.take(name, Json::of(value));
        }
    }
    walk.closed()
}

/// The field's text.
pub(super) fn text(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    let spelled = raw?.get();
    let inner =
        spelled.strip_prefix('"').filter(|_| string_end(spelled.as_bytes(), 0) == Some(spelled.len()));
    match inner {
        Some(inner) if !inner.contains('\\') => Some(Cow::Borrowed(&inner[..inner.len() - 1])),
        Some(_) => serde_json::from_str::<String>(spelled).ok().map(Cow::Owned),
        None => None,
    }
}

/// The field's text, empty where it has none.
pub(super) fn word(raw: Raw<'_>) -> Cow<'_, str> {
    text(raw).unwrap_or_default()
}

shapes! {
    /// One block of a text.
    Block { text }
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
    if let Some(whole) = text(raw) {
        return vec![whole];
    }
    list::<Block<'a>>(raw).into_iter().filter_map(|b| text(b.text)).collect()
}

/// Reads a whole line as `T`.
///
/// # Errors
/// Not JSON, or no object.
pub(super) fn from_line<'a, T: Shape<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let line = std::str::from_utf8(bytes).map_err(|_| DecodeError::Json)?;
    let mut object = T::default();
    match members(line, &mut object) {
        Some(end) if line[end..].trim_ascii().is_empty() => Ok(object),
        // Something else that is JSON, or nothing that is.
        None if serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok() => Err(DecodeError::Shape),
        _ => Err(DecodeError::Json),
    }
}
