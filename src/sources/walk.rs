//! Walking over JSON without making anything of it: where values begin and end. Most of a transcript is text that
//! nobody looks at, so what counts is how fast it is passed over; whatever is looked at is read by `serde_json` then.
//!
//! Only what has to hold for finding the ends is checked: texts end, brackets match, values are separated.

/// Deepest nesting, that of `serde_json`.
const MAX_DEPTH: usize = 128;

/// A place in a text.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    text: &'a str,
    at: usize,
    /// The bracket that ends the list or object.
    closing: u8,
    /// No member or element has been read.
    first: bool,
    closed: bool,
}

// === impl Walk ===

impl<'a> Walk<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, closing: 0, first: true, closed: false }
    }

    /// Enters a list or object.
    pub(super) fn open(&mut self, bracket: u8) -> Option<()> {
        self.blanks();
        if self.peek()? != bracket {
            return None;
        }
        self.at += 1;
        // `[` and `]`, `{` and `}` lie two apart.
        self.closing = bracket + 2;
        Some(())
    }

    /// The next member of an object: its name as it is spelled between the quotes, and its value.
    pub(super) fn member(&mut self) -> Option<(&'a str, &'a str)> {
        self.separator()?;
        let from = self.at;
        if self.peek()? != b'"' {
            return None;
        }
        let end = string_end(self.text.as_bytes(), from)?;
        self.at = end;
        self.blanks();
        if self.peek()? != b':' {
            return None;
        }
        self.at += 1;
        Some((&self.text[from + 1..end - 1], self.value()?))
    }

    /// The next element of a list.
    pub(super) fn element(&mut self) -> Option<&'a str> {
        self.separator()?;
        self.value()
    }

    /// Where the list or object ended; `None` if it did not, or not well.
    pub(super) fn closed(&self) -> Option<usize> {
        self.closed.then_some(self.at)
    }

    fn separator(&mut self) -> Option<()> {
        if self.closed {
            return None;
        }
        self.blanks();
        match self.peek()? {
            b',' if !self.first => self.at += 1,
            end if end == self.closing => {
                self.at += 1;
                self.closed = true;
                return None;
            }
            _ if self.first => {}
            _ => return None,
        }
        self.first = false;
        self.blanks();
        Some(())
    }

    fn value(&mut self) -> Option<&'a str> {
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

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }
}

/// The end of the text whose quote stands at `from`.
pub(super) fn string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
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
        if walk.open(b'{').is_some() {
            while let Some(member) = walk.member() {
                all.push(member);
            }
        }
        (all, walk.closed())
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
