//! A line that is not one JSON object: the objects in it, and how often something else. Asked only about lines that
//! a decoder could not read, and about a last line without an end, so that ordinary lines are looked through once.

use std::borrow::Cow;

use serde::de::IgnoredAny;

/// Places of one line at which an object may begin again behind damage; what lies behind the last one is lost.
const MAX_TRIES: usize = 16;
/// Longest first key that is searched for.
const MAX_KEY: usize = 64;

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// One whole object, as valid UTF-8: other bytes in its texts are replaced.
    Object(Cow<'a, [u8]>),
    /// Something else, up to the next object or the end.
    Damage,
}

/// Hands out the parts of a line, in order. Objects may follow each other with or without blanks. After damage (a
/// process died while it wrote, and the next one wrote on) reading goes on where an object can only begin anew.
pub fn pieces(line: &[u8], each: &mut dyn FnMut(Piece<'_>)) {
    let (mut at, mut tries) = (0, 0);
    loop {
        at += line[at..].iter().take_while(|b| is_blank(**b)).count();
        if at == line.len() {
            return;
        }
        if let Some(length) = object(&line[at..]) {
            let bytes = &line[at..at + length];
            each(Piece::Object(match String::from_utf8_lossy(bytes) {
                Cow::Borrowed(_) => Cow::Borrowed(bytes),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            }));
            at += length;
            continue;
        }
        each(Piece::Damage);
        // One piece of damage, however many of the places where an object might begin turn out to be none.
        let next = std::iter::successors(begins_anew(line, at), |from| begins_anew(line, *from));
        let mut next = next.take_while(|_| {
            tries += 1;
            tries <= MAX_TRIES
        });
        match next.find(|from| object(&line[*from..]).is_some()) {
            Some(from) => at = from,
            None => return,
        }
    }
}

/// Whether all of `bytes` is objects: then no further byte can change what they say.
pub fn complete(bytes: &[u8]) -> bool {
    // The cheap question first: an unfinished line is asked about while it grows.
    if bytes.last() != Some(&b'}') {
        return false;
    }
    let (mut any, mut whole) = (false, true);
    pieces(bytes, &mut |piece| {
        any = true;
        whole &= piece != Piece::Damage;
    });
    any && whole
}

/// The length of the object that `bytes` begin with.
fn object(bytes: &[u8]) -> Option<usize> {
    if bytes.first() != Some(&b'{') {
        return None;
    }
    let mut stream = serde_json::Deserializer::from_slice(bytes).into_iter::<IgnoredAny>();
    matches!(stream.next(), Some(Ok(_))).then(|| stream.byte_offset())
}

/// Blanks, line ends of other systems, and the zeroes that a crash of the machine leaves.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0
}

/// Where behind `from` an object of the line can only be a new one: behind zeroes or a line end, which stand in no
/// object, or at the key with which the line began, where what stands before it introduces no value.
fn begins_anew(line: &[u8], from: usize) -> Option<usize> {
    let rest = from + 1..line.len();
    let after_gap = memchr::memchr2_iter(0, b'\r', &line[rest.clone()]).find_map(|gap| {
        let at = from + 1 + gap;
        let blanks = line[at..].iter().take_while(|b| is_blank(**b)).count();
        (line.get(at + blanks) == Some(&b'{')).then_some(at + blanks)
    });
    let again = first_key(line).and_then(|key| {
        let mut found = memchr::memmem::find_iter(&line[rest.clone()], key).map(|at| from + 1 + at);
        found.find(|at| {
            let before = line[..*at].iter().rev().find(|b| !is_blank(**b));
            before.is_some_and(|b| !b":[,".contains(b))
        })
    });
    after_gap.into_iter().chain(again).min()
}

/// `{"key"` at the beginning of a line.
fn first_key(line: &[u8]) -> Option<&[u8]> {
    let name = line.strip_prefix(b"{\"")?;
    let length = memchr::memchr2(b'"', b'\\', &name[..name.len().min(MAX_KEY)])?;
    (name[length] == b'"' && length > 0).then(|| &line[..length + 3])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[u8]) -> Vec<String> {
        let mut out = Vec::new();
        pieces(line, &mut |piece| {
            out.push(match piece {
                Piece::Object(bytes) => String::from_utf8(bytes.into_owned()).unwrap(),
                Piece::Damage => "-".to_owned(),
            });
        });
        out
    }

    #[test]
    fn objects_follow_each_other() {
        assert_eq!(read(br#"{"a":{"b":"}{"}}{"c":[]}"#), [r#"{"a":{"b":"}{"}}"#, r#"{"c":[]}"#]);
        assert_eq!(read(b"{\"a\":1} \r\0\0{\"b\":2}\t{}"), [r#"{"a":1}"#, r#"{"b":2}"#, "{}"]);
        assert_eq!(read(b"{}"), ["{}"]);
        assert_eq!(read(b"\0 \r"), [""; 0]);
    }

    #[test]
    fn damage_is_one_piece_and_takes_no_object_with_it() {
        assert_eq!(read(br#"{"a":1} rest of a line"#), [r#"{"a":1}"#, "-"]);
        assert_eq!(read(br#"{"a":1},{"a":2}"#), [r#"{"a":1}"#, "-"]);
        assert_eq!(read(br#"[{"a":1}]"#), ["-"]);
        assert_eq!(read(b"null"), ["-"]);
        assert_eq!(read(b"{\"a\":\"cut\0\0\0{\"b\":2}"), ["-", r#"{"b":2}"#]);
        assert_eq!(read(b"garbage\r{\"b\":2}\rgarbage"), ["-", r#"{"b":2}"#, "-"]);
        assert_eq!(
            read(br#"{"a":"cut in a te{"a":"whole"}{"b":2}"#),
            ["-", r#"{"a":"whole"}"#, r#"{"b":2}"#]
        );
        assert_eq!(
            read(br#"{"a":[{"a":1},{"a":2"#),
            ["-"],
            "parts of a damaged object are none of their own"
        );
        assert_eq!(read(br#"{"a":1,"b":{"a":1}"#), ["-"]);
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        assert_eq!(read(b"{\"a\":\"\xff\xc3\"}"), ["{\"a\":\"\u{fffd}\u{fffd}\"}"]);
        assert_eq!(read(b"\xff{\"a\":1}"), ["-"]);
    }

    #[test]
    fn only_whole_objects_are_complete() {
        for whole in [&br#"{"a":1}"#[..], b"{} {}", b"{}\0{}"] {
            assert!(complete(whole));
        }
        for other in [&b""[..], b"{", br#"{"a":{}"#, b"1", b"[{}", b"{}}", b"{}{", b"x{}", b"}"] {
            assert!(!complete(other), "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn a_line_of_damage_costs_no_more_than_a_few_looks() {
        let line = br#"{"a":"x"#.repeat(100_000);
        let began = std::time::Instant::now();
        assert_eq!(read(&line), ["-"]);
        let deep = b"{\"a\":".repeat(300_000);
        assert_eq!(read(&deep), ["-"]);
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
