//! A recording with the places in it that differ from copy to copy: ids and times. Both keep their lengths, so that a
//! copy is made by writing over those places.

use std::collections::HashSet;

/// Beginnings of ids that are no UUIDs; what follows differs.
const PREFIXES: &[&str] =
    &["toolu_", "srvtoolu_", "msg_", "req_", "call_", "rs_", "fc_", "ctc_", "fco_", "resp_"];
/// Keys of short ids without a beginning of their own.
const SHORT: &[&str] = &["\"agentId\":\"", "\"backgroundTaskId\":\"", "\"task_id\":\""];
/// Shorter ones are words: short ids, and what follows a beginning.
const SHORTEST: usize = 7;
const SHORTEST_REST: usize = 4;
/// Length of an id in its usual spelling.
const UUID: usize = 36;
/// Length of `2026-11-29T15:00:00`; what follows is a part of a second.
const TIME: usize = 19;

/// A place that differs from copy to copy.
#[derive(Clone, Copy, Debug)]
enum What {
    /// The session's own id.
    Session,
    /// Any other id, by its hash.
    Id(u64),
    /// A UUID that begins with the milliseconds in which it was made.
    Dated(u64, i64),
    /// A date and time, in seconds.
    Time(i64),
    /// Decimal digits, so many of which are parts of a second.
    Epoch(i64, u32),
}

#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    len: usize,
    what: What,
}

/// A recording.
pub(super) struct Template {
    pub(super) bytes: Vec<u8>,
    pub(super) lines: u64,
    /// First and last time of its records, in milliseconds; old recordings have none.
    pub(super) times: Option<(i64, i64)>,
    places: Vec<Place>,
    own: Vec<u8>,
}

/// What makes a copy another one.
pub(super) struct Change<'a> {
    pub(super) session: &'a str,
    pub(super) seed: u64,
    pub(super) shift_s: i64,
}

/// Spreads the bits of a number (SplitMix64).
pub(super) fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// FNV-1a.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// `2026-11-29T15:00:00.000Z`.
pub(super) fn time_of(ms: i64) -> String {
    let mut text = *b"0000-00-00T00:00:00";
    put_time(&mut text, ms.div_euclid(1000));
    format!("{}.{:03}Z", std::str::from_utf8(&text).unwrap(), ms.rem_euclid(1000))
}

// === impl Template ===

impl Template {
    /// A recording whose own sessions stand behind these keys.
    pub(super) fn new(bytes: Vec<u8>, keys: &[&str]) -> Self {
        let own = keys.iter().flat_map(|key| values(&bytes, key)).filter(|v| is_uuid(v));
        let own: HashSet<Vec<u8>> = own.map(<[u8]>::to_vec).collect();
        Self::with(bytes, &own)
    }

    /// A recording of this session.
    pub(super) fn of_session(bytes: Vec<u8>, session: &[u8]) -> Self {
        Self::with(bytes, &HashSet::from([session.to_vec()]))
    }

    fn with(mut bytes: Vec<u8>, sessions: &HashSet<Vec<u8>>) -> Self {
        if !bytes.ends_with(b"\n") {
            bytes.push(b'\n');
        }
        let mut places = places(&bytes, sessions);
        // An id may stand inside a longer one, or begin like it.
        places.sort_by_key(|p| (p.at, std::cmp::Reverse(p.len)));
        places.dedup_by(|b, a| b.at < a.at + a.len);
        let times = values(&bytes, "\"timestamp\":\"").filter_map(millis);
        let times = times.map(|t| (t, t)).reduce(|(first, last), (t, _)| (first.min(t), last.max(t)));
        let lines = bytes.split(|b| *b == b'\n').filter(|l| !l.trim_ascii().is_empty()).count() as u64;
        let own = sessions.iter().min().cloned().unwrap_or_default();
        Self { bytes, lines, times, places, own }
    }

    /// The session's id in a copy.
    pub(super) fn session(&self, seed: u64, shift_s: i64) -> String {
        let mut id = self.own.clone();
        if id.len() != UUID {
            id = b"00000000-0000-4000-8000-000000000000".to_vec();
        }
        let what = id_of(&id);
        put(&mut id, what, seed, shift_s);
        String::from_utf8(id).unwrap()
    }

    /// Appends a copy.
    pub(super) fn write(&self, change: &Change<'_>, out: &mut Vec<u8>) {
        let base = out.len();
        out.extend_from_slice(&self.bytes);
        for place in &self.places {
            let bytes = &mut out[base + place.at..base + place.at + place.len];
            match place.what {
                What::Session => bytes.copy_from_slice(change.session.as_bytes()),
                what => put(bytes, what, change.seed, change.shift_s),
            }
        }
    }

    /// The name of a sub-agent's file in a copy: the id in it changes like the one in the file.
    pub(super) fn rename(&self, name: &str, change: &Change<'_>) -> String {
        let Some((before, id)) = name.rsplit_once('-') else { return name.to_owned() };
        let mut id = id.as_bytes().to_vec();
        let what = What::Id(hash(&id));
        put(&mut id, what, change.seed, change.shift_s);
        format!("{before}-{}", String::from_utf8(id).unwrap())
    }
}

/// Values behind a key that is written without blanks.
fn values<'a>(bytes: &'a [u8], key: &str) -> impl Iterator<Item = &'a [u8]> {
    let starts: Vec<usize> = memchr::memmem::find_iter(bytes, key).map(|at| at + key.len()).collect();
    starts.into_iter().filter_map(|from| bytes[from..].split(|b| *b == b'"').next())
}

/// All places of a recording, in no order; they may overlap.
fn places(bytes: &[u8], sessions: &HashSet<Vec<u8>>) -> Vec<Place> {
    let mut out = Vec::new();
    for at in memchr::memchr_iter(b'-', bytes) {
        // A UUID has its first dash behind eight digits, a date behind four.
        if let Some(id) =
            at.checked_sub(8).and_then(|from| bytes.get(from..from + UUID)).filter(|id| is_uuid(id))
        {
            let what = if sessions.contains(id) { What::Session } else { id_of(id) };
            out.push(Place { at: at - 8, len: UUID, what });
        }
        if let Some(text) = at.checked_sub(4).and_then(|from| bytes.get(from..from + TIME + 1))
            && let Some(seconds) = seconds(text)
        {
            out.push(Place { at: at - 4, len: TIME, what: What::Time(seconds) });
        }
    }
    let word =
        |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    for prefix in PREFIXES {
        for at in memchr::memmem::find_iter(bytes, prefix) {
            let from = at + prefix.len();
            let inside = at > 0 && bytes[at - 1].is_ascii_alphanumeric();
            let len = word(from);
            if !inside && len >= SHORTEST_REST && bytes[from..from + len].iter().any(u8::is_ascii_digit) {
                out.push(Place { at: from, len, what: What::Id(hash(&bytes[from..from + len])) });
            }
        }
    }
    let short: HashSet<&[u8]> = SHORT.iter().flat_map(|key| values(bytes, key)).collect();
    for id in short.into_iter().filter(|id| id.len() >= SHORTEST && !is_uuid(id)) {
        let what = What::Id(hash(id));
        out.extend(memchr::memmem::find_iter(bytes, id).map(|at| Place { at, len: id.len(), what }));
    }
    for key in ["_at\":", "_at_ms\":"] {
        for at in memchr::memmem::find_iter(bytes, key) {
            let from = at + key.len();
            let len = bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
            let number = std::str::from_utf8(&bytes[from..from + len]).unwrap().parse();
            if let (Ok(number), 10 | 13) = (number, len) {
                out.push(Place { at: from, len, what: What::Epoch(number, len as u32 - 10) });
            }
        }
    }
    out
}

fn is_uuid(text: &[u8]) -> bool {
    text.len() == UUID
        && text.iter().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => *b == b'-',
            _ => matches!(b, b'0'..=b'9' | b'a'..=b'f'),
        })
}

fn id_of(id: &[u8]) -> What {
    if id[14] != b'7' {
        return What::Id(hash(id));
    }
    let digits = [&id[..8], &id[9..13]].concat();
    let made = i64::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap();
    What::Dated(hash(id), made)
}

/// Writes over an id or a time.
fn put(bytes: &mut [u8], what: What, seed: u64, shift_s: i64) {
    match what {
        What::Session => {}
        What::Id(hash) => scramble(bytes, mix(hash ^ seed)),
        What::Dated(hash, made) => {
            let made = format!("{:012x}", made + shift_s * 1000);
            scramble(bytes, mix(hash ^ seed));
            bytes[..8].copy_from_slice(&made.as_bytes()[..8]);
            bytes[9..13].copy_from_slice(&made.as_bytes()[8..12]);
        }
        What::Time(seconds) => put_time(bytes, seconds + shift_s),
        What::Epoch(number, decimals) => {
            let text = (number + shift_s * 10_i64.pow(decimals)).to_string();
            bytes.copy_from_slice(text.as_bytes());
        }
    }
}

/// Other letters and digits of the same kinds. What says the version and variant of a UUID stays.
fn scramble(bytes: &mut [u8], seed: u64) {
    let uuid = is_uuid(bytes);
    let hex = uuid || bytes.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b));
    let mut random = seed;
    for (i, byte) in bytes.iter_mut().enumerate() {
        if i % 8 == 7 {
            random = mix(random);
        }
        let r = (random >> (i % 8 * 8)) as u8;
        *byte = match *byte {
            kept if uuid && (i == 14 || i == 19) => kept,
            b'0'..=b'9' | b'a'..=b'f' if hex => b"0123456789abcdef"[usize::from(r % 16)],
            b'0'..=b'9' => b'0' + r % 10,
            b'a'..=b'z' => b'a' + r % 26,
            b'A'..=b'Z' => b'A' + r % 26,
            other => other,
        };
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |n, b| b.is_ascii_digit().then(|| n * 10 + i64::from(b - b'0')))
}

/// Seconds of a date and time; what follows must be a part of a second or the mark of universal time.
fn seconds(text: &[u8]) -> Option<i64> {
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if marks.iter().any(|(at, mark)| text[*at] != *mark) || !matches!(text[TIME], b'.' | b'Z') {
        return None;
    }
    let part = |from: usize, to: usize| number(&text[from..to]);
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let (hour, minute, second) = (part(11, 13)?, part(14, 16)?, part(17, 19)?);
    // Days since the epoch, counted in years that begin in March
    // (<https://howardhinnant.github.io/date_algorithms.html>, `days_from_civil`).
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * m + 2) / 5 + day - 1;
    let days = y * 365 + y / 4 - y / 100 + y / 400 + day_of_year - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

fn millis(text: &[u8]) -> Option<i64> {
    let whole = seconds(text.get(..TIME + 1)?)?;
    let part = text.get(TIME + 1..TIME + 4).and_then(number).unwrap_or(0);
    Some(whole * 1000 + part)
}

/// Writes seconds as `2026-11-29T15:00:00`.
fn put_time(out: &mut [u8], seconds: i64) {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // `civil_from_days` of the same page.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * m + 2) / 5 + 1;
    let month = if m < 10 { m + 3 } else { m - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    for (at, len, mut n) in [
        (0, 4, year),
        (5, 2, month),
        (8, 2, day),
        (11, 2, rest / 3600),
        (14, 2, rest / 60 % 60),
        (17, 2, rest % 60),
    ] {
        for byte in out[at..at + len].iter_mut().rev() {
            *byte = b'0' + (n % 10) as u8;
            n /= 10;
        }
    }
}
