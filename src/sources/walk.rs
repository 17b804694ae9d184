//! Walking over JSON without making anything of it: where values begin and end. Most of a transcript is text that
//! nobody looks at, so what counts is how fast it is passed over; whatever is looked at is read by `serde_json` then.
//!
//! Only what has to hold for finding the ends is checked: texts end, brackets match, values are separated.

/// Deepest nesting, that of `serde_json`.
const MAX_DEPTH: usize = 128;

/// A place in a text, somewhere in its JSON.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    text: &'a str,
    at: usize,
}

/// What a walk does with the value it stands before: it has to pass it, and may take it in.
pub(super) trait Take<'a>: Default {
    /// Takes the value in; `None` if it has no end.
    fn take(walk: &mut Walk<'a>) -> Option<Self>;
}

// === impl Walk ===

impl<'a> Walk<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// What lies behind the place.
    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Passes an object; `each` gets every member's name, as it is spelled between the quotes, and has to pass its
    /// value. `None`: it is no object, or has no end.
    pub(super) fn object(&mut self, mut each: impl FnMut(&'a str, &mut Self) -> Option<()>) -> Option<()> {
        self.list_of(b'{', |walk| {
            let from = walk.at;
            if walk.peek()? != b'"' {
                return None;
            }
            let end = string_end(walk.text.as_bytes(), from)?;
            walk.at = end;
            walk.blanks();
            if walk.peek()? != b':' {
                return None;
            }
            walk.at += 1;
            walk.blanks();
            each(&walk.text[from + 1..end - 1], walk)
        })
    }

    /// Passes a list; `each` has to pass every element.
    pub(super) fn list(&mut self, each: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.list_of(b'[', each)
    }

    fn list_of(&mut self, bracket: u8, mut each: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.blanks();
        if self.peek()? != bracket {
            return None;
        }
        self.at += 1;
        // `[` and `]`, `{` and `}` lie two apart.
        let closing = bracket + 2;
        self.blanks();
        if self.peek()? == closing {
            self.at += 1;
            return Some(());
        }
        loop {
            self.blanks();
            each(self)?;
            self.blanks();
            let next = self.peek()?;
            self.at += 1;
            match next {
                b',' => {}
                end if end == closing => return Some(()),
                _ => return None,
            }
        }
    }

    /// Passes a value, and gives its spelling.
    pub(super) fn value(&mut self) -> Option<&'a str> {
        self.blanks();
        let from = self.at;
        let bytes = self.text.as_bytes();
        self.at = match self.peek()? {
            b'"' => string_end(bytes, from)?,
            b'{' | b'[' => nested_end(bytes, from)?,
            _ => scalar_end(bytes, from)?,
        };
        Some(&self.text[from..self.at])
    }

    /// The first byte of what comes next.
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }
}

/// The end of the text whose quote stands at `from`. Eight bytes at a time: texts of agents have an escape every few
/// dozen bytes, which is too often for a search that has to be set up each time.
fn string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    loop {
        while let Some(eight) = bytes.get(at..at + 8) {
            let mut word = [0; 8];
            word.copy_from_slice(eight);
            let word = u64::from_le_bytes(word);
            let found = zero_bytes(word ^ every(b'"')) | zero_bytes(word ^ every(b'\\'));
            if found != 0 {
                at += found.trailing_zeros() as usize / 8;
                break;
            }
            at += 8;
        }
        match *bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// A word that has this byte eight times.
const fn every(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// A word whose lowest set bit is in the first byte of `word` that is zero; none is set if none is.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(every(1)) & !word & every(0x80)
}

/// The end of the list or object whose bracket stands at `from`.
fn nested_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut open = Vec::with_capacity(8);
    let mut at = from;
    loop {
        match *bytes.get(at)? {
            b'"' => {
                at = string_end(bytes, at)?;
                continue;
            }
            bracket @ (b'{' | b'[') => {
                if open.len() >= MAX_DEPTH {
                    return None;
                }
                open.push(bracket + 2);
            }
            bracket @ (b'}' | b']') => {
                if open.pop() != Some(bracket) {
                    return None;
                }
                if open.is_empty() {
                    return Some(at + 1);
                }
            }
            0 => return None,
            _ => {}
        }
        at += 1;
    }
}

/// The end of a number or a word.
fn scalar_end(bytes: &[u8], from: usize) -> Option<usize> {
    let length = bytes[from..]
        .iter()
        .take_while(|b| matches!(b, b'0'..=b'9' | b'a'..=b'z' | b'+' | b'-' | b'.' | b'E'));
    let end = from + length.count();
    let scalar = &bytes[from..end];
    let is_word = matches!(scalar, b"true" | b"false" | b"null");
    let is_number = scalar.first().is_some_and(|b| b.is_ascii_digit() || *b == b'-');
    (is_word || is_number).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(text: &str) -> (Vec<(&str, &str)>, Option<usize>) {
        let mut walk = Walk::new(text);
        let mut all = Vec::new();
        let passed = walk.object(|name, walk| {
            all.push((name, walk.value()?));
            Some(())
        });
        (all, passed.map(|()| text.len() - walk.rest().len()))
    }

    #[test]
    fn members_are_found_whatever_they_hold() {
        let text = r#" { "a" : 1 , "b":"x\"}\\","c":{"d":["}",{}]} ,"e":null}rest"#;
        let (found, end) = members(text);
        assert_eq!(found, [("a", "1"), ("b", r#""x\"}\\""#), ("c", r#"{"d":["}",{}]}"#), ("e", "null")]);
        assert_eq!(end, Some(text.len() - 4));
        assert_eq!(members("{}"), (vec![], Some(2)));
    }

    #[test]
    fn what_has_no_end_is_no_object() {
        for text in [
            "",
            "{",
            "[]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1",
            "{\"a\":1,}",
            "{,}",
            "{\"a\":1 \"b\":2}",
            "{\"a\":\"x",
            "{\"a\":\"x\\",
            "{\"a\":[}]}",
            "{\"a\":[1}",
            "{\"a\":tru}",
            "{\"a\":x}",
            "{a:1}",
            "{\"a\":\u{0}}",
        ] {
            assert_eq!(members(text).1, None, "{text}");
        }
        let deep = |n: usize| format!("{{\"a\":{}{}}}", "[".repeat(n), "]".repeat(n));
        assert!(members(&deep(MAX_DEPTH)).1.is_some());
        assert!(members(&deep(MAX_DEPTH + 1)).1.is_none());
    }

    #[test]
    fn a_text_ends_at_its_quote_wherever_that_stands() {
        for length in 0..40 {
            for escape in 0..=length {
                let mut text = "é".repeat(length);
                text.insert_str(escape * 2, "\\\"\\\\");
                let text = format!("\"{text}\"behind\"");
                assert_eq!(string_end(text.as_bytes(), 0), Some(text.len() - 7), "{text}");
                assert_eq!(string_end(&text.as_bytes()[..text.len() - 8], 0), None, "{text}");
            }
        }
    }

    #[test]
    fn it_agrees_with_serde_json_on_what_is_json() {
        let values =
            ["1", "-2.5e3", "true", "null", "\"\\u00e9\\n\"", "[1,[2,{\"x\":\"]\"}]]", "{\"y\":{}}", "[]"];
        for a in values {
            for b in values {
                let text = format!("{{\"k\":{a},\"l\" : {b}}}");
                assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
                assert_eq!(members(&text), (vec![("k", a), ("l", b)], Some(text.len())));
            }
        }
    }
}
