//! Files that are read once, from the first line to the last, plain or as zstd. For recordings: nothing is followed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use super::packed::MAX_WINDOW;
use super::read::{MAX_LINE, tidy};

/// Bytes read at once.
const CHUNK: usize = 1 << 18;

/// A line as it was found, without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeLine<'a> {
    /// All of it.
    Text(&'a [u8]),
    /// It is longer than any record may be.
    TooLong,
}

/// The frames of a zstd file, one after the other.
struct Frames(Option<StreamingDecoder<BufReader<File>, FrameDecoder>>);

// === impl Frames ===

impl Frames {
    fn next(source: BufReader<File>) -> io::Result<StreamingDecoder<BufReader<File>, FrameDecoder>> {
        StreamingDecoder::new_with_max_window_size(source, MAX_WINDOW).map_err(io::Error::other)
    }
}

impl Read for Frames {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(frame) = &mut self.0 {
            let n = frame.read(out)?;
            if n > 0 || out.is_empty() {
                return Ok(n);
            }
            let more = !frame.get_mut().fill_buf()?.is_empty();
            let source = self.0.take().filter(|_| more).map(StreamingDecoder::into_inner);
            self.0 = source.map(Self::next).transpose()?;
        }
        Ok(0)
    }
}

/// Hands out the lines of a file that are not blank.
///
/// # Errors
/// When the file cannot be read or is no zstd although it is called so.
pub fn each_line(path: &Path, mut each: impl FnMut(WholeLine<'_>)) -> io::Result<()> {
    split(open(path)?, &mut each)
}

/// The first bytes of a file, at most `most`.
///
/// # Errors
/// As [`each_line`].
pub fn head(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    open(path)?.take(u64::try_from(most).unwrap_or(u64::MAX)).read_to_end(&mut head)?;
    Ok(head)
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let file = BufReader::with_capacity(CHUNK, File::open(path)?);
    if path.extension().is_some_and(|e| e == "zst") {
        return Ok(Box::new(BufReader::with_capacity(CHUNK, Frames(Some(Frames::next(file)?)))));
    }
    Ok(Box::new(file))
}

fn split(mut reader: impl BufRead, each: &mut impl FnMut(WholeLine<'_>)) -> io::Result<()> {
    let mut line = Vec::new();
    let most = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
    loop {
        line.clear();
        let n = reader.by_ref().take(most).read_until(b'\n', &mut line)?;
        if n == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') && n >= MAX_LINE {
            reader.skip_until(b'\n')?;
            each(WholeLine::TooLong);
        } else {
            let line = tidy(&line);
            if !line.is_empty() {
                each(WholeLine::Text(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn lines(text: &[u8]) -> Vec<Option<Vec<u8>>> {
        let mut out = Vec::new();
        let mut each = |line: WholeLine<'_>| {
            out.push(match line {
                WholeLine::Text(text) => Some(text.to_vec()),
                WholeLine::TooLong => None,
            });
        };
        split(Cursor::new(text), &mut each).unwrap();
        out
    }

    #[test]
    fn all_frames_of_a_compressed_file_are_read() {
        use ruzstd::encoding::{CompressionLevel, compress_to_vec};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl.zst");
        let frame = |text: &str| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
        std::fs::write(&path, [frame("a\nb"), frame("c\n"), frame("d")].concat()).unwrap();
        let mut all = Vec::new();
        each_line(&path, |line| {
            let WholeLine::Text(text) = line else { panic!() };
            all.push(String::from_utf8(text.to_vec()).unwrap());
        })
        .unwrap();
        assert_eq!(all, ["a", "bc", "d"]);
        std::fs::write(&path, "a").unwrap();
        assert!(each_line(&path, |_| panic!()).is_err());
    }

    #[test]
    fn lines_come_without_their_ends_and_marks_and_the_last_may_have_no_end() {
        assert_eq!(lines(b"\xef\xbb\xbfa\r\n\n  \nb"), [Some(b"a".to_vec()), Some(b"b".to_vec())]);
    }

    #[test]
    fn what_is_too_long_is_left_out_alone() {
        let mut text = vec![b'x'; MAX_LINE + 3];
        text.extend_from_slice(b"\nnext\n");
        assert_eq!(lines(&text), [None, Some(b"next".to_vec())]);
    }
}
