//! Values as they are written, in TOML or as text of a flag or variable, and their conversion. No keys here.

use std::path::PathBuf;
use std::time::Duration;

use toml::Value;

/// What a key takes. Decides how text is read and how the key is documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// A whole number.
    Number,
    /// `true` or `false`; as a flag it needs no value.
    Switch,
    /// Texts; a flag is repeated, a variable separates them by commas.
    List,
}

/// Why a value does not fit: what is expected instead.
pub(super) type Expected = String;

// === impl Kind ===

impl Kind {
    /// What a variable gave, in the form in which flags give it.
    pub(super) fn split(self, variable: &str) -> Vec<String> {
        match self {
            Self::List => {
                variable.split(',').map(str::trim).filter(|t| !t.is_empty()).map(str::to_owned).collect()
            }
            _ => vec![variable.to_owned()],
        }
    }

    /// Reads what flags or a variable gave.
    pub(super) fn read(self, texts: &[String]) -> Result<Value, Expected> {
        let last = texts.last().map_or("", String::as_str).trim();
        match self {
            Self::Text => Ok(Value::String(last.to_owned())),
            Self::Number => {
                last.parse().map(Value::Integer).map_err(|_| "expected a whole number".to_owned())
            }
            Self::Switch => last.parse().map(Value::Boolean).map_err(|_| "expected true or false".to_owned()),
            Self::List => Ok(Value::Array(texts.iter().map(|t| Value::String(t.clone())).collect())),
        }
    }
}

pub(super) fn text(value: &Value) -> Result<&str, Expected> {
    value.as_str().ok_or_else(|| "expected a text in quotes".to_owned())
}

pub(super) fn switch(value: &Value) -> Result<bool, Expected> {
    value.as_bool().ok_or_else(|| "expected true or false".to_owned())
}

/// A whole number of this range.
pub(super) fn number<T: TryFrom<i64> + PartialOrd + std::fmt::Display>(
    value: &Value,
    least: T,
) -> Result<T, Expected> {
    let wrong = || format!("expected a whole number, at least {least}");
    let n = value.as_integer().and_then(|n| T::try_from(n).ok()).ok_or_else(wrong)?;
    if n < least { Err(wrong()) } else { Ok(n) }
}

pub(super) fn list(value: &Value) -> Result<Vec<String>, Expected> {
    let wrong = || "expected a list of texts in quotes".to_owned();
    let items = value.as_array().ok_or_else(wrong)?;
    items.iter().map(|v| v.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

/// One of a closed set.
pub(super) fn choice<T: Copy>(value: &Value, of: &[(&str, T)]) -> Result<T, Expected> {
    let given = text(value)?;
    of.iter().find(|(name, _)| *name == given).map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = of.iter().map(|(name, _)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// `7d`, `1h30m`, `90s`.
pub(super) fn duration(value: &Value) -> Result<Duration, Expected> {
    let parse = |text: &str| {
        let mut seconds = 0_u64;
        for part in text.split_inclusive(|c: char| c.is_ascii_alphabetic()) {
            let unit = part.chars().last()?;
            let n: u64 = part.strip_suffix(unit)?.parse().ok()?;
            let factor = match unit {
                's' => 1,
                'm' => 60,
                'h' => 3600,
                'd' => 86_400,
                _ => return None,
            };
            seconds = seconds.checked_add(n.checked_mul(factor)?)?;
        }
        (!text.is_empty()).then(|| Duration::from_secs(seconds))
    };
    value
        .as_str()
        .and_then(parse)
        .ok_or_else(|| "expected a duration with its unit, as \"7d\", \"12h\", \"30m\" or \"90s\"".to_owned())
}

/// A path; a leading `~` is the home folder of the user.
pub(super) fn path(value: &Value, home: Option<&str>) -> Result<PathBuf, Expected> {
    let given = text(value)?;
    let below_home = if given == "~" { Some("") } else { given.strip_prefix("~/") };
    match (below_home, home) {
        (Some(""), Some(home)) => Ok(PathBuf::from(home)),
        (Some(rest), Some(home)) => Ok(PathBuf::from(home).join(rest)),
        (Some(_), None) => Err("expected a full path, because HOME is not set".to_owned()),
        (None, _) if given.is_empty() => Err("expected a path".to_owned()),
        (None, _) => Ok(PathBuf::from(given)),
    }
}

pub(super) fn paths(value: &Value, home: Option<&str>) -> Result<Vec<PathBuf>, Expected> {
    list(value)?.into_iter().map(|p| path(&Value::String(p), home)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Value {
        Value::String(text.to_owned())
    }

    #[test]
    fn durations_need_a_unit() {
        let seconds = |text: &str| duration(&of(text)).ok().map(|d| d.as_secs());
        assert_eq!(seconds("7d"), Some(604_800));
        assert_eq!(seconds("1h30m"), Some(5400));
        assert_eq!(seconds("0s"), Some(0));
        for bad in ["", "7", "d", "7w", "-1d", "7 d", "1.5h", "99999999999999999999d", "9999999999999999d"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
        assert!(duration(&Value::Integer(7)).is_err());
    }

    #[test]
    fn numbers_stay_in_their_range() {
        assert_eq!(number(&Value::Integer(5), 1_u32), Ok(5));
        assert!(number(&Value::Integer(0), 1_u32).is_err());
        assert!(number(&Value::Integer(-1), 0_u32).is_err());
        assert!(number(&Value::Integer(1 << 40), 0_u32).is_err());
        assert!(number(&of("5"), 0_u32).is_err());
    }

    #[test]
    fn text_of_a_variable_becomes_the_kind_of_its_key() {
        let read = |kind: Kind, text: &str| kind.read(&[text.to_owned()]);
        assert_eq!(read(Kind::Number, " 5 "), Ok(Value::Integer(5)));
        assert!(read(Kind::Number, "five").is_err());
        assert_eq!(read(Kind::Switch, "true"), Ok(Value::Boolean(true)));
        assert!(read(Kind::Switch, "yes").is_err());
        assert_eq!(Kind::List.split("a, b,,"), ["a", "b"]);
        assert_eq!(list(&read(Kind::List, "a, b").unwrap()).unwrap(), ["a, b"], "a path may hold a comma");
    }

    #[test]
    fn a_tilde_is_the_home_of_the_user() {
        assert_eq!(path(&of("~/x"), Some("/home/dev")), Ok(PathBuf::from("/home/dev/x")));
        assert_eq!(path(&of("/x"), Some("/home/dev")), Ok(PathBuf::from("/x")));
        assert_eq!(path(&of("~x"), Some("/home/dev")), Ok(PathBuf::from("~x")));
        assert_eq!(path(&of("~"), Some("/home/dev")), Ok(PathBuf::from("/home/dev")));
        assert!(path(&of("~/x"), None).is_err());
        assert!(path(&of(""), None).is_err());
    }
}
