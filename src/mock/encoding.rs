//! Compressed bodies.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use super::answer::Body;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Gzip,
    /// The zlib format, as HTTP means the word.
    Deflate,
}

impl Encoding {
    pub(super) const WORDS: &[(&str, Self)] = &[("gzip", Self::Gzip), ("deflate", Self::Deflate)];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// Compresses the body as one stream, flushed after each piece.
    pub(super) fn apply(self, body: &mut Body) {
        let parts: Vec<&mut Bytes> = match body {
            Body::Whole(bytes) => vec![bytes],
            Body::Pieces(pieces) => pieces.iter_mut().map(|piece| &mut piece.bytes).collect(),
            Body::Raw(_) | Body::Silence => return,
        };
        // Writing to memory does not fail; were it to, the body would stay as it is.
        let _ = match self {
            Self::Gzip => {
                compress(GzEncoder::new(Vec::new(), Compression::fast()), parts, |encoder| encoder.get_mut())
            }
            Self::Deflate => compress(ZlibEncoder::new(Vec::new(), Compression::fast()), parts, |encoder| {
                encoder.get_mut()
            }),
        };
    }
}

trait Finish: Write {
    fn end(self) -> io::Result<Vec<u8>>;
}

impl Finish for GzEncoder<Vec<u8>> {
    fn end(self) -> io::Result<Vec<u8>> {
        self.finish()
    }
}

impl Finish for ZlibEncoder<Vec<u8>> {
    fn end(self) -> io::Result<Vec<u8>> {
        self.finish()
    }
}

fn compress<E: Finish>(
    mut encoder: E,
    mut parts: Vec<&mut Bytes>,
    output: impl Fn(&mut E) -> &mut Vec<u8>,
) -> io::Result<()> {
    let Some(last) = parts.pop() else { return Ok(()) };
    for part in parts {
        encoder.write_all(part)?;
        encoder.flush()?;
        *part = std::mem::take(output(&mut encoder)).into();
    }
    encoder.write_all(last)?;
    *last = encoder.end()?.into();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::answer::Piece;
    use std::io::Read;

    #[test]
    fn each_piece_can_be_read_when_it_arrives() {
        let piece = |text: &'static str| Piece { bytes: text.into(), ..Piece::default() };
        let mut body = Body::Pieces(vec![piece("first "), piece("second")]);
        Encoding::Gzip.apply(&mut body);
        let Body::Pieces(pieces) = body else { unreachable!() };
        let mut decoder = flate2::write::GzDecoder::new(Vec::new());
        decoder.write_all(&pieces[0].bytes).unwrap();
        decoder.flush().unwrap();
        assert_eq!(decoder.get_ref(), b"first ");
        decoder.write_all(&pieces[1].bytes).unwrap();
        assert_eq!(decoder.finish().unwrap(), b"first second");
    }

    #[test]
    fn deflate_is_zlib() {
        let mut body = Body::Whole("text".into());
        Encoding::Deflate.apply(&mut body);
        let Body::Whole(bytes) = body else { unreachable!() };
        let mut text = String::new();
        flate2::read::ZlibDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }
}
