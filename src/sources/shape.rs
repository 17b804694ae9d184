//! Reading JSON of which little is needed: fields stay raw until one is looked at, so that a field of an unexpected
//! type loses that field and not the record. No meaning here.

use std::borrow::Cow;

use serde::Deserialize;

use super::DecodeError;
use super::walk::{Take, Walk};
use crate::event::Timestamp;

/// A value as it is spelled. It is one as far as its ends go; what is inside is checked when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Json<'a>(&'a str);

/// A field that is looked at only where its kind of record has it; `null` is none.
pub(super) type Raw<'a> = Option<Json<'a>>;

/// An object by its fields.
pub(super) trait Shape<'a>: Default {
    /// Takes a field in, or passes it.
    fn field(&mut self, name: &str, walk: &mut Walk<'a>) -> Option<()>;
}

/// Declares objects by their fields: raw ones, and objects of their own (`field: Shape`). `= "…"` where the wire name
/// is no identifier of ours.
macro_rules! shapes {
    ($($(#[$meta:meta])* $name:ident { $($field:ident $(: $kind:ident)? $(= $wire:literal)?),+ $(,)? })+) => {$(
        $(#[$meta])*
        #[derive(Default)]
        pub(super) struct $name<'a> {
            $(pub(super) $field: $crate::sources::shape::kind!('a $($kind)?),)+
        }

        impl<'a> $crate::sources::shape::Shape<'a> for $name<'a> {
            fn field(&mut self, name: &str, walk: &mut $crate::sources::walk::Walk<'a>) -> Option<()> {
                $(
                    if name == $crate::sources::shape::wire_name!($field $($wire)?) {
                        self.$field = $crate::sources::walk::Take::take(walk)?;
                        return Some(());
                    }
                )+
                walk.value().map(|_| ())
            }
        }

        impl<'a> $crate::sources::walk::Take<'a> for $name<'a> {
            fn take(walk: &mut $crate::sources::walk::Walk<'a>) -> Option<Self> {
                $crate::sources::shape::take_object(walk)
            }
        }
    )+};
}

/// What a field holds.
macro_rules! kind {
    ($life:lifetime) => { $crate::sources::shape::Raw<$life> };
    ($life:lifetime $kind:ident) => { $kind<$life> };
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

pub(crate) use kind;
pub(crate) use shapes;
pub(crate) use wire_name;

// === impl Json ===

impl<'a> Json<'a> {
    /// The spelling.
    pub(super) fn get(self) -> &'a str {
        self.0
    }

    pub(super) fn of(text: &'a str) -> Raw<'a> {
        (text != "null").then_some(Self(text))
    }
}

/// The field as `T`, or `None` where it is absent or something else.
pub(super) fn read<'a, T: Deserialize<'a>>(raw: Raw<'a>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// JSON that stands in a text.
pub(super) fn json(text: &str) -> Raw<'_> {
    let text = text.trim_ascii();
    // What is no value is none; every other `Json` comes from a walk.
    let value = Walk::new(text).value()?;
    (value.len() == text.len()).then(|| Json::of(text)).flatten()
}

/// The members of an object, none where the field is something else.
pub(super) fn pairs<'a>(raw: Raw<'a>) -> Vec<(&'a str, Raw<'a>)> {
    let mut all = Vec::new();
    let whole = Walk::new(raw.map_or("", Json::get)).object(|name, walk| {
        all.push((name, Json::of(walk.value()?)));
        Some(())
    });
    whole.map(|()| all).unwrap_or_default()
}

/// The field as an object, or `None` where it is something else.
pub(super) fn shape<'a, T: Shape<'a>>(raw: Raw<'a>) -> Option<T> {
    let mut walk = Walk::new(raw?.get());
    let mut object = T::default();
    members(&mut walk, &mut object)?;
    walk.rest().trim_ascii().is_empty().then_some(object)
}

/// The field as an object, or one without fields.
pub(super) fn object<'a, T: Shape<'a>>(raw: Raw<'a>) -> T {
    shape(raw).unwrap_or_default()
}

/// The elements of a list, none where the field is something else.
pub(super) fn elements<'a>(raw: Raw<'a>) -> Vec<Raw<'a>> {
    let mut all = Vec::new();
    let whole = Walk::new(raw.map_or("", Json::get)).list(|walk| {
        all.push(Json::of(walk.value()?));
        Some(())
    });
    whole.map(|()| all).unwrap_or_default()
}

/// The elements of a list that are objects.
pub(super) fn list<'a, T: Shape<'a>>(raw: Raw<'a>) -> Vec<T> {
    elements(raw).into_iter().filter_map(shape).collect()
}

/// Takes the members of an object in; `None` if it is none, or has no end.
fn members<'a, T: Shape<'a>>(walk: &mut Walk<'a>, object: &mut T) -> Option<()> {
    walk.object(|name, walk| {
        if name.contains('\\') {
            let spelled: String = serde_json::from_str(&format!("\"{name}\"")).ok()?;
            object.field(&spelled, walk)
        } else {
            object.field(name, walk)
        }
    })
}

/// An object, or one without fields where something else stands.
pub(super) fn take_object<'a, T: Shape<'a>>(walk: &mut Walk<'a>) -> Option<T> {
    let mut object = T::default();
    if walk.peek()? == b'{' {
        members(walk, &mut object)?;
    } else {
        walk.value()?;
    }
    Some(object)
}

impl<'a> Take<'a> for Raw<'a> {
    fn take(walk: &mut Walk<'a>) -> Option<Self> {
        Some(Json::of(walk.value()?))
    }
}

/// The field's text.
pub(super) fn text(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    let spelled = raw?.get();
    let inner = spelled.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_some() {
        return serde_json::from_str::<String>(spelled).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(inner))
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
    let mut walk = Walk::new(line);
    let mut object = T::default();
    match members(&mut walk, &mut object) {
        Some(()) if walk.rest().trim_ascii().is_empty() => Ok(object),
        // Something else that is JSON, or nothing that is.
        None if serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok() => Err(DecodeError::Shape),
        _ => Err(DecodeError::Json),
    }
}
