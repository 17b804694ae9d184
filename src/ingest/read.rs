//! Whole lines out of a file that may be growing, with bounded memory. What a line means is not known here.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;

use super::{Hash, Prints};

/// Longest line that is handed out; a longer one is skipped to its newline and counted. Recorded rollouts have
/// lines of 8 MB, written twice; public reports name 27 MB.
pub const MAX_LINE: usize = 8 << 20;
/// Bytes at the beginning of a file, and before the place that was reached, that tell whether it is still the one
/// that was read.
pub(super) const PRINT: usize = 256;
/// Bytes read at once.
pub(super) const CHUNK: usize = 128 << 10;
/// Bytes looked through in one go for the end of an over-long line, so that such a file cannot hold up the rest.
const SEARCH: u64 = 64 << 20;

/// One line without its end, not empty.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Offset behind its newline, or behind itself where it has none.
    pub end: u64,
}

/// Takes a line; `Break` ends the slice behind it.
pub(super) type OnLine<'a> = &'a mut dyn FnMut(Line<'_>) -> ControlFlow<()>;

/// Where reading stands in a growing file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Behind the last line handed out.
    pub(super) offset: u64,
    /// No newline between `offset` and here: an unfinished line is read once, not at every piece of it.
    pub(super) searched: u64,
}

/// What one read did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    /// There is more to read now.
    pub(super) more: bool,
    /// Lines skipped for their length.
    pub(super) too_long: u64,
}

/// Hands out the whole lines of `bytes`, which begin at `base`. Returns how many bytes they took, and whether the
/// taker has had enough.
pub(super) fn split(bytes: &[u8], base: u64, on_line: OnLine<'_>) -> (usize, bool) {
    let mut from = 0;
    for newline in memchr::memchr_iter(b'\n', bytes) {
        let line = tidy(&bytes[from..newline]);
        from = newline + 1;
        if line.is_empty() {
            continue;
        }
        if on_line(Line { bytes: line, end: base + from as u64 }).is_break() {
            return (from, true);
        }
    }
    (from, false)
}

/// Takes off what editors, copying tools and other systems add, and the zeroes that a crash of the machine leaves at
/// either end of what was being written. A mark may stand before any line of a file that was put together.
pub(super) fn tidy(line: &[u8]) -> &[u8] {
    let line = trim_start(line);
    let line = line.strip_prefix(b"\xef\xbb\xbf").map_or(line, trim_start);
    let end = line.iter().rposition(|b| !is_blank(*b)).map_or(0, |last| last + 1);
    &line[..end]
}

fn trim_start(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|b| !is_blank(*b)).unwrap_or(line.len());
    &line[start..]
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0
}

/// Reads whole lines from `place` on, up to `budget` bytes.
pub(super) fn read_lines(
    file: &File,
    place: &mut Place,
    buffer: &mut Vec<u8>,
    budget: u64,
    on_line: OnLine<'_>,
) -> io::Result<Read> {
    let stop_at = place.offset.saturating_add(budget);
    let mut done = Read::default();
    loop {
        let mut want = CHUNK;
        if place.searched > place.offset {
            let Some(newline) = find_newline(file, place, buffer, &mut done.more)? else { return Ok(done) };
            let length = newline - place.offset;
            if length > MAX_LINE as u64 {
                done.too_long += 1;
                *place = Place { offset: newline + 1, searched: newline + 1 };
                continue;
            }
            want = want.max(usize::try_from(length).unwrap_or(MAX_LINE) + 1);
        }
        buffer.resize(want, 0);
        let got = fill(file, buffer, place.offset)?;
        let (taken, enough) = split(&buffer[..got], place.offset, on_line);
        place.offset += taken as u64;
        place.searched = if enough { place.offset } else { place.offset + (got - taken) as u64 };
        if got < want && !enough {
            return Ok(done);
        }
        if enough || place.offset >= stop_at {
            done.more = true;
            return Ok(done);
        }
        // A chunk rarely ends with a line. Where one line was finished, the rest is read again with the next chunk.
        if taken > 0 {
            place.searched = place.offset;
        }
    }
}

/// Hands out the last line of a file of `size` bytes, which has no end, if it `complete`ly says what it says: many
/// files end so for ever. What follows later is a line of its own. Returns whether it was handed out.
pub(super) fn read_rest(
    file: &File,
    place: &mut Place,
    size: u64,
    buffer: &mut Vec<u8>,
    complete: fn(&[u8]) -> bool,
    on_line: OnLine<'_>,
) -> io::Result<bool> {
    let Some(length) = size.checked_sub(place.offset).and_then(|l| usize::try_from(l).ok()) else {
        return Ok(false);
    };
    if length > MAX_LINE {
        return Ok(false);
    }
    buffer.resize(length, 0);
    // A newline that came meanwhile makes it a line like others.
    if fill(file, buffer, place.offset)? < length || memchr::memchr(b'\n', buffer).is_some() {
        return Ok(false);
    }
    let Some(taken) = hand_out_rest(buffer, place.offset, complete, on_line) else { return Ok(false) };
    place.offset += taken as u64;
    place.searched = place.offset;
    Ok(true)
}

/// As [`read_rest`], from bytes that begin at `base`. Returns how many it took.
pub(super) fn hand_out_rest(
    rest: &[u8],
    base: u64,
    complete: fn(&[u8]) -> bool,
    on_line: OnLine<'_>,
) -> Option<usize> {
    let line = tidy(rest);
    if line.is_empty() || !complete(line) {
        return None;
    }
    let taken = rest.iter().rposition(|b| !is_blank(*b)).map_or(0, |last| last + 1);
    // Whether the taker has had enough makes no difference behind the last line.
    let _ = on_line(Line { bytes: line, end: base + taken as u64 });
    Some(taken)
}

/// Looks for the newline that ends the line at `place.offset`.
fn find_newline(
    file: &File,
    place: &mut Place,
    buffer: &mut Vec<u8>,
    more: &mut bool,
) -> io::Result<Option<u64>> {
    let give_up = place.searched + SEARCH;
    buffer.resize(buffer.len().max(CHUNK), 0);
    while place.searched < give_up {
        let got = fill(file, buffer, place.searched)?;
        if let Some(at) = memchr::memchr(b'\n', &buffer[..got]) {
            return Ok(Some(place.searched + at as u64));
        }
        place.searched += got as u64;
        if got < buffer.len() {
            return Ok(None);
        }
    }
    *more = true;
    Ok(None)
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], at + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

/// The fingerprints of a file that was read up to `offset`. `None`: the file is shorter, so this is not what was read.
pub(super) fn prints_of(file: &File, offset: u64, hash: &Hash) -> io::Result<Option<Prints>> {
    let mut bytes = [0; PRINT];
    let length = usize::try_from(offset).unwrap_or(PRINT).min(PRINT);
    if fill(file, &mut bytes[..length], 0)? < length {
        return Ok(None);
    }
    let head = hash(&bytes[..length]);
    if offset > PRINT as u64 && fill(file, &mut bytes, offset - PRINT as u64)? < PRINT {
        return Ok(None);
    }
    Ok(Some(Prints { head, tail: hash(&bytes[..length]) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn all(file: &File, place: &mut Place, budget: u64) -> (Vec<(Vec<u8>, u64)>, Read) {
        let (mut lines, mut buffer) = (Vec::new(), Vec::new());
        let read = read_lines(file, place, &mut buffer, budget, &mut |line| {
            lines.push((line.bytes.to_vec(), line.end));
            ControlFlow::Continue(())
        });
        (lines, read.unwrap())
    }

    fn file_of(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn marks_and_line_ends_of_other_systems_are_taken_off() {
        let file = file_of(b"\xef\xbb\xbf{1}\r\n\r\n\n  \n{2}\n\xef\xbb\xbf{3}\n{4");
        let mut place = Place::default();
        let (lines, read) = all(&file, &mut place, u64::MAX);
        let text: Vec<_> = lines.iter().map(|(l, _)| l.as_slice()).collect();
        assert_eq!(text, [b"{1}".as_slice(), b"{2}", b"{3}"]);
        assert_eq!(lines[0].1, 8);
        assert_eq!(read, Read::default());
        assert_eq!((place.offset, place.searched), (25, 27));
    }

    #[test]
    fn an_over_long_line_is_skipped_and_the_longest_is_not() {
        let mut content = vec![b'a'; MAX_LINE];
        content.push(b'\n');
        content.extend(vec![b'b'; MAX_LINE + 1]);
        content.extend(b"\nc\n");
        let file = file_of(&content);
        let mut place = Place::default();
        let (lines, read) = all(&file, &mut place, u64::MAX);
        let lengths: Vec<_> = lines.iter().map(|(l, _)| l.len()).collect();
        assert_eq!(lengths, [MAX_LINE, 1]);
        assert_eq!(read.too_long, 1);
    }

    #[test]
    fn a_slice_ends_at_its_budget_and_goes_on_there() {
        let line = format!("{}\n", "x".repeat(999));
        let file = file_of(line.repeat(1000).as_bytes());
        let (mut place, mut count, mut slices) = (Place::default(), 0, 0);
        loop {
            let (lines, read) = all(&file, &mut place, 200_000);
            count += lines.len();
            slices += 1;
            if !read.more {
                break;
            }
        }
        assert_eq!(count, 1000);
        assert!(slices > 3, "{slices}");
    }

    #[test]
    fn zeroes_at_the_ends_of_a_line_are_taken_off() {
        let file = file_of(b"\0\0\0{1}\n{2}\0\0\n\0\0\0\0\n\0 \xef\xbb\xbf\0{3}\r\0\n{4\0}\n");
        let (lines, _) = all(&file, &mut Place::default(), u64::MAX);
        let text: Vec<_> = lines.iter().map(|(l, _)| l.as_slice()).collect();
        assert_eq!(text, [b"{1}".as_slice(), b"{2}", b"{3}", b"{4\0}"]);
    }

    #[test]
    fn the_buffer_stays_small_however_long_a_line_is() {
        let mut content = b"before\n".to_vec();
        content.resize(64 << 20, b'x');
        content.extend(b"\nafter\n");
        let file = file_of(&content);
        let (mut place, mut buffer, mut lines) = (Place::default(), Vec::new(), Vec::new());
        let mut too_long = 0;
        loop {
            let read = read_lines(&file, &mut place, &mut buffer, 1 << 20, &mut |line| {
                lines.push(line.bytes.to_vec());
                ControlFlow::Continue(())
            });
            let read = read.unwrap();
            too_long += read.too_long;
            if !read.more {
                break;
            }
        }
        assert_eq!(lines, [b"before".to_vec(), b"after".to_vec()]);
        assert_eq!(too_long, 1);
        assert!(buffer.capacity() <= 2 * CHUNK, "{}", buffer.capacity());
    }

    #[test]
    fn a_last_line_without_an_end_is_handed_out_when_it_is_complete() {
        let complete = |b: &[u8]| b.ends_with(b"}");
        let rest = |content: &[u8], offset: u64| {
            let (mut place, mut lines) = (Place { offset, searched: offset }, Vec::new());
            let read = read_rest(
                &file_of(content),
                &mut place,
                content.len() as u64,
                &mut Vec::new(),
                complete,
                &mut |line| {
                    lines.push((line.bytes.to_vec(), line.end));
                    ControlFlow::Break(())
                },
            );
            (read.unwrap(), place.offset, lines.pop())
        };
        assert_eq!(rest(b"{1}\n{2} \0", 4), (true, 7, Some((b"{2}".to_vec(), 7))));
        assert_eq!(rest(b"{1}\n{2", 4), (false, 4, None));
        assert_eq!(rest(b"{1}\n{2}\n", 4), (false, 4, None), "that is a line with an end");
        assert_eq!(rest(b"{1} \0", 3), (false, 3, None));
        assert_eq!(rest(b"{1}", 9), (false, 9, None));
        let mut long = vec![b' '; MAX_LINE];
        long.push(b'}');
        assert_eq!(rest(&long, 0), (false, 0, None));
    }

    #[test]
    fn the_fingerprints_tell_a_rewritten_file() {
        let hash: Hash = std::sync::Arc::new(|b| b.iter().fold(7, |h, c| h * 31 % 1_000_003 + u64::from(*c)));
        let (old, new) = (file_of(b"one\ntwo\n"), file_of(b"two\none\n"));
        let prints = prints_of(&old, 4, &hash).unwrap();
        assert!(prints.is_some());
        assert_ne!(prints, prints_of(&new, 4, &hash).unwrap());
        assert_eq!(prints_of(&old, 9, &hash).unwrap(), None);
        // The same head, and another end of what was read.
        let head = "x".repeat(1000);
        let (old, new) =
            (file_of(format!("{head}one\n").as_bytes()), file_of(format!("{head}two\n").as_bytes()));
        let (old, new) = (prints_of(&old, 1004, &hash).unwrap(), prints_of(&new, 1004, &hash).unwrap());
        assert_eq!(old.unwrap().head, new.unwrap().head);
        assert_ne!(old.unwrap().tail, new.unwrap().tail);
    }
}
