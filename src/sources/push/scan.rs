//! The form nearly every line has, an object with plain scalars and one object inside, read at a third of what the
//! general parser takes. Values that are not plain are read by `serde_json` one by one; a line of another form is no
//! error here but left to it as a whole, so that it alone judges what is malformed. What the fields mean is decided in
//! `facts`.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde::de::IntoDeserializer as _;

use super::wire::Data;
use super::wire::Envelope;
use super::wire::Field;
use super::wire::Scalar;

/// Digits of an integer that fits any number type.
const MAX_DIGITS: usize = 15;

/// Reads a line; `None` if it is not plain.
pub(super) fn envelope(line: &str) -> Option<Envelope<'_>> {
    // Control characters belong between tokens only, and hardly anybody writes them there.
    if line.bytes().fold(u8::MAX, u8::min) < b' ' {
        return None;
    }
    let mut scan = Scan { text: line, at: 0 };
    let mut envelope = Envelope::default();
    let mut seen = 0u16;
    scan.members(|scan, key| {
        let (bit, place) = match key {
            "schemaVersion" => (1, &mut envelope.schema_version),
            "id" => (2, &mut envelope.id),
            "time" => (4, &mut envelope.time),
            "source" => (8, &mut envelope.source),
            "sessionId" => (16, &mut envelope.session_id),
            "parentSessionId" => (32, &mut envelope.parent_session_id),
            "projectId" => (64, &mut envelope.project_id),
            "requestId" => (128, &mut envelope.request_id),
            "type" => (256, &mut envelope.kind),
            "traceparent" => (1024, &mut envelope.trace_parent),
            "data" if seen & 512 == 0 => {
                seen |= 512;
                envelope.data = Some(scan.data()?);
                return Some(());
            }
            "data" => return None,
            _ => return scan.parsed::<IgnoredAny>().map(drop),
        };
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
        *place = scan.scalar()?;
        Some(())
    })?;
    scan.skip_blanks();
    (scan.at == line.len()).then_some(envelope)
}

/// A position in a line.
struct Scan<'a> {
    text: &'a str,
    at: usize,
}

// === impl Scan ===

impl<'a> Scan<'a> {
    fn skip_blanks(&mut self) {
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Goes past the next token, if it is this one.
    fn eat(&mut self, token: u8) -> Option<()> {
        self.skip_blanks();
        (self.peek() == Some(token)).then(|| self.at += 1)
    }

    /// The members of an object; `value` reads what stands behind a key.
    fn members(&mut self, mut value: impl FnMut(&mut Self, &'a str) -> Option<()>) -> Option<()> {
        self.eat(b'{')?;
        if self.eat(b'}').is_some() {
            return Some(());
        }
        loop {
            self.eat(b'"')?;
            let key = self.string()?;
            self.eat(b':')?;
            self.skip_blanks();
            value(self, key)?;
            if self.eat(b',').is_none() {
                return self.eat(b'}');
            }
        }
    }

    fn data(&mut self) -> Option<Data<'a>> {
        let mut data = Data::new();
        self.members(|scan, key| {
            let field: Result<Field, serde::de::value::Error> = Field::deserialize(key.into_deserializer());
            match field.ok()? {
                Field::Args => data.args = scan.parsed()?,
                Field::ReadRange => data.read_range = scan.parsed()?,
                Field::Event => data.event = scan.parsed()?,
                Field::Data => data.inner = scan.parsed()?,
                Field::Unknown => _ = scan.parsed::<IgnoredAny>()?,
                field => data.push(field, scan.scalar()?),
            }
            Some(())
        })?;
        Some(data)
    }

    /// A string without escapes whose opening quote is behind us.
    fn string(&mut self) -> Option<&'a str> {
        let rest = self.text.get(self.at..)?;
        let end = memchr::memchr2(b'"', b'\\', rest.as_bytes())?;
        let (string, rest) = rest.split_at_checked(end)?;
        rest.starts_with('"').then(|| {
            self.at += end + 1;
            string
        })
    }

    fn scalar(&mut self) -> Option<Scalar<'a>> {
        let start = self.at;
        let plain = match self.peek()? {
            b'"' => {
                self.at += 1;
                self.string().map(|text| Scalar::Text(Cow::Borrowed(text)))
            }
            b'0'..=b'9' => self.number(),
            _ => None,
        };
        plain.or_else(|| {
            self.at = start;
            self.parsed()
        })
    }

    /// A natural number of ordinary length.
    fn number(&mut self) -> Option<Scalar<'a>> {
        let rest = self.text.as_bytes().get(self.at..)?;
        let digits = rest.iter().take(MAX_DIGITS + 1).take_while(|b| b.is_ascii_digit()).count();
        let plain = digits <= MAX_DIGITS
            && (digits == 1 || rest[0] != b'0')
            && matches!(rest.get(digits), Some(b',' | b'}' | b' '));
        plain.then(|| {
            self.at += digits;
            Scalar::Number(rest[..digits].iter().fold(0u64, |n, b| n * 10 + u64::from(b - b'0')) as f64)
        })
    }

    /// Any value, by the general parser.
    fn parsed<T: Deserialize<'a>>(&mut self) -> Option<T> {
        let rest = self.text.get(self.at..)?;
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<T>();
        let value = values.next()?.ok()?;
        self.at += values.byte_offset();
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of both ways, comparable.
    fn both(line: &str) -> (Option<String>, Option<String>) {
        let show = |e: Envelope<'_>| format!("{e:?}");
        (envelope(line).map(show), serde_json::from_str(line).ok().map(show))
    }

    #[test]
    fn a_line_reads_as_the_general_parser_reads_it() {
        for line in [
            r#"{"schemaVersion":"1","id":"e1","time":1795966474638,"source":"bot","sessionId":"s","type":"activity"}"#,
            r#" { "id" : "ü" , "time":"2026-11-29T15:34:34Z", "type":"x", "data" : { } } "#,
            r#"{"type":"tool.started","data":{"callId":"c","tool":"shell","args":{"command":"a \"b\"\n"},"asks":false}}"#,
            r#"{"type":"tool.started","data":{"args":null,"readRange":{"start":1,"end":2},"other":[1,{"a":"\\"}]}}"#,
            r#"{"type":"usage","data":{"input":0,"output":12,"cacheRead":null,"denied":true}}"#,
            r#"{"parentSessionId":"p","projectId":"/a/b","requestId":"r","sessionId":null,"source":7}"#,
            r#"{"id":"a\n","time":-1.5e3,"source":-0,"type":12345678901234567890,"unheard":[1]}"#,
            r#"{"type":"orchestrator.event","data":{"event":"spec:start","data":{"specName":"a","n":[{}]},"at":"x"}}"#,
            r#"{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","sessionId":"s"}"#,
            r#"{"id":{"a":[]},"data":{"tool":"\u00e4","kind":[],"denied":false}}"#,
        ] {
            let (plain, general) = both(line);
            assert!(plain.is_some(), "{line}");
            assert_eq!(plain, general, "{line}");
        }
    }

    #[test]
    fn what_is_malformed_or_repeated_is_left_alone() {
        for line in [
            "",
            "{",
            "{}x",
            "{\"id\":\"a\tb\"}",
            r#"{"id":"a","id":"b"}"#,
            r#"{"data":{},"data":{}}"#,
            r#"{"id":01}"#,
            r#"{"data":[]}"#,
            r#"{"data":{"args":{]}}"#,
            r#"{"id":tru}"#,
            r#"{"id":"a",}"#,
            r#"{"id" "a"}"#,
        ] {
            assert!(envelope(line).is_none(), "{line}");
        }
    }

    proptest::proptest! {
        /// Lines that are nearly JSON: whatever is taken here, the general parser takes in the same way.
        #[test]
        fn never_takes_what_the_general_parser_would_not(
            pieces in proptest::collection::vec(0..PIECES.len(), 0..24),
        ) {
            let line: String = pieces.into_iter().map(|i| PIECES[i]).collect();
            for line in [&line, &format!("{{{line}}}"), &format!(r#"{{"data":{{{line}}}}}"#)] {
                let (plain, general) = both(line);
                proptest::prop_assert!(plain.is_none() || plain == general, "{}", line);
            }
        }
    }

    const PIECES: [&str; 24] = [
        "{",
        "}",
        "\"",
        ":",
        ",",
        " ",
        "\"id\":",
        "\"time\":",
        "\"data\":{",
        "\"tool\":",
        "\"args\":",
        "\"x\"",
        "1",
        "0",
        "-",
        ".5",
        "e3",
        "true",
        "null",
        "\\",
        "[",
        "]",
        "\"id\":\"a\",",
        "\"tool\":1,",
    ];
}
