//! Text that spans say: words of our own, and names that others hold too, are not copied.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Text that may be shown.
#[derive(Clone, Debug)]
pub enum Text {
    /// A word of the program's own.
    Word(&'static str),
    /// Anything else.
    Name(Arc<str>),
}

// === impl Text ===

impl Text {
    /// The text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Word(word) => word,
            Self::Name(name) => name,
        }
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Text {}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Deserialize::deserialize(deserializer).map(Self::Name)
    }
}

impl From<&'static str> for Text {
    fn from(word: &'static str) -> Self {
        Self::Word(word)
    }
}

impl From<&Arc<str>> for Text {
    fn from(name: &Arc<str>) -> Self {
        Self::Name(name.clone())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::Name(text.into())
    }
}
