//! Trace contexts that an agent or its caller gives: ids of somebody else's trace, and nothing of what it says.
//!
//! Format: `traceparent` of <https://www.w3.org/TR/trace-context/>. `tracestate` is not read: it is free text of others.

use serde::{Deserialize, Serialize};

/// Contexts of one run that are kept, each of another trace.
pub const MAX_CALLERS: usize = 4;
/// Length of `traceparent` in version 0, which is the beginning of every later version.
const LENGTH: usize = 55;

/// Somebody else's span, or a trace of which no span was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TraceContext {
    /// The trace.
    pub trace: [u8; 16],
    /// The span in it.
    pub span: Option<[u8; 8]>,
}

// === impl TraceContext ===

impl TraceContext {
    /// Reads a `traceparent`; `None` where it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let version: [u8; 1] = hex(bytes.get(..2)?)?;
        let fits = match version[0] {
            0 => bytes.len() == LENGTH,
            0xff => false,
            // A later version may go on behind another hyphen.
            _ => bytes.len() == LENGTH || bytes.get(LENGTH) == Some(&b'-'),
        };
        if !fits || [2, 35, 52].iter().any(|at| bytes.get(*at) != Some(&b'-')) {
            return None;
        }
        let _flags: [u8; 1] = hex(bytes.get(53..LENGTH)?)?;
        let trace = id(bytes.get(3..35)?)?;
        let span = Some(id(bytes.get(36..52)?)?);
        Some(Self { trace, span })
    }

    /// A trace of which only the id is told, as 32 hexadecimal digits.
    pub fn of_trace(text: &str) -> Option<Self> {
        Some(Self { trace: id(text.as_bytes())?, span: None })
    }

    /// The trace's id as it is written.
    pub fn trace_text(&self) -> String {
        use std::fmt::Write as _;
        self.trace.iter().fold(String::with_capacity(32), |mut text, b| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{b:02x}");
            text
        })
    }
}

/// An id, which is not all zeroes.
fn id<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    hex(digits).filter(|bytes| bytes.iter().any(|b| *b != 0))
}

/// Lower-case hexadecimal digits; upper-case ones are not allowed there.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_is_read() {
        let context = TraceContext::parse(GOOD).unwrap();
        assert_eq!(context.trace_text(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span, Some([0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]));
        let later = format!("cc{}-what-the-future-holds", &GOOD[2..]);
        assert_eq!(TraceContext::parse(&later), Some(context));
        assert_eq!(TraceContext::parse(&format!("cc{}", &GOOD[2..])), Some(context));
        let only = TraceContext::of_trace("4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(only, Some(TraceContext { span: None, ..context }));
    }

    #[test]
    fn what_is_not_one_is_none() {
        for bad in [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-more"),
            &format!("{GOOD}\u{e9}"),
            &format!("ff{}", &GOOD[2..]),
            &format!("0g{}", &GOOD[2..]),
            &format!("cc{}x", &GOOD[2..]),
            &GOOD.to_uppercase(),
            &GOOD.replace('-', "_"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
            "00-4bf92f3577b34da6a3ce929d0e0e473\u{e9}-0f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
        assert_eq!(TraceContext::of_trace("00000000000000000000000000000000"), None);
        assert_eq!(TraceContext::of_trace("4bf92f35"), None);
    }
}
