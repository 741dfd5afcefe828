//! The files of a log as one sequence of records in order of time: one pass, memory bounded by the number of files.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::record::{self, Names, Record, Unread};

/// Buffers of all files together. Each has between the two other bounds.
const BUFFERS: usize = 32 << 20;
const LEAST_BUFFER: usize = 8 << 10;
const MOST_BUFFER: usize = 1 << 20;

/// A longer line is no record: fifteen tags of 128 characters make 4 KB.
const LONGEST_LINE: usize = 64 << 10;

/// What was found in a file, by lines.
#[derive(Debug, Clone, Serialize)]
pub struct FileCount {
    pub path: PathBuf,
    pub bytes: u64,
    pub lines: u64,
    pub records: u64,
    /// Lines that are no records. A process that was killed leaves one, without a line end.
    pub broken: u64,
    /// Records of a later version of the log.
    pub newer: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ts: Option<f64>,
}

struct Source {
    input: BufReader<File>,
    line: Vec<u8>,
    gate: u64,
    count: FileCount,
}

/// A file's next record; the earliest is the greatest, as a heap wants it.
struct Next {
    record: Record,
    source: usize,
}

impl Ord for Next {
    fn cmp(&self, other: &Self) -> Ordering {
        other.record.ts.total_cmp(&self.record.ts).then_with(|| other.source.cmp(&self.source))
    }
}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Next {}

/// All files, merged by time.
pub(super) struct Reader {
    sources: Vec<Source>,
    next: BinaryHeap<Next>,
    names: Names,
    latest: f64,
    /// Files whose first record was not looked for yet.
    unopened: usize,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("files", &self.sources.len()).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens the files. A record later than `latest` (Unix seconds) is broken.
    pub(super) fn open(paths: &[PathBuf], latest: f64) -> Result<Self, Unreadable> {
        let buffer = (BUFFERS / paths.len().max(1)).clamp(LEAST_BUFFER, MOST_BUFFER);
        let mut sources = Vec::with_capacity(paths.len());
        for (path, gate) in paths.iter().zip(0..) {
            sources.push(Source::open(path, buffer, gate).map_err(|error| Unreadable::new(path, &error))?);
        }
        let unopened = sources.len();
        Ok(Self {
            sources,
            next: BinaryHeap::with_capacity(unopened),
            names: Names::default(),
            latest,
            unopened,
        })
    }

    /// The earliest record that was not read yet.
    pub(super) fn read(&mut self) -> Result<Option<Record>, Unreadable> {
        while self.unopened > 0 {
            self.unopened -= 1;
            self.refill(self.unopened)?;
        }
        let Some(Next { record, source }) = self.next.pop() else { return Ok(None) };
        self.refill(source)?;
        Ok(Some(record))
    }

    fn refill(&mut self, index: usize) -> Result<(), Unreadable> {
        let Some(source) = self.sources.get_mut(index) else { return Ok(()) };
        let record = source.read(&mut self.names, self.latest);
        if let Some(record) = record.map_err(|error| Unreadable::new(&source.count.path, &error))? {
            self.next.push(Next { record, source: index });
        }
        Ok(())
    }

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = &FileCount> {
        self.sources.iter().map(|source| &source.count)
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.counts().map(|count| count.bytes).sum()
    }

    /// What the files held when they were opened; a log that is written to grows on.
    pub(super) fn bytes_in_all(&self) -> u64 {
        self.sources
            .iter()
            .filter_map(|source| source.input.get_ref().metadata().ok())
            .map(|data| data.len())
            .sum()
    }
}

impl Source {
    fn open(path: &Path, buffer: usize, gate: u64) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        Ok(Self {
            input: BufReader::with_capacity(buffer, file),
            line: Vec::new(),
            gate,
            count: FileCount {
                path: path.to_owned(),
                bytes: 0,
                lines: 0,
                records: 0,
                broken: 0,
                newer: 0,
                first_ts: None,
                last_ts: None,
            },
        })
    }

    fn read(&mut self, names: &mut Names, latest: f64) -> io::Result<Option<Record>> {
        while self.next_line()? {
            let count = &mut self.count;
            count.lines += 1;
            if self.line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            if self.line.len() >= LONGEST_LINE {
                count.broken += 1;
                continue;
            }
            match record::read(&self.line, names, self.gate, latest) {
                Ok(record) => {
                    count.records += 1;
                    count.first_ts.get_or_insert(record.ts);
                    count.last_ts = Some(record.ts);
                    return Ok(Some(record));
                }
                Err(Unread::Broken) => count.broken += 1,
                Err(Unread::Newer) => count.newer += 1,
            }
        }
        Ok(None)
    }

    /// Puts the next line into `line`, or what is left at the file's end; of a line that is too long its start.
    fn next_line(&mut self) -> io::Result<bool> {
        self.line.clear();
        let mut any = false;
        loop {
            let ready = match self.input.fill_buf() {
                Ok(ready) => ready,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if ready.is_empty() {
                return Ok(any);
            }
            any = true;
            let end = memchr::memchr(b'\n', ready);
            let piece = end.map_or(ready, |end| ready.split_at(end).0);
            let room = LONGEST_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(piece.split_at(room.min(piece.len())).0);
            let used = piece.len() + usize::from(end.is_some());
            self.input.consume(used);
            self.count.bytes += used as u64;
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct Unreadable {
    path: String,
    reason: String,
}

impl Unreadable {
    fn new(path: &Path, error: &io::Error) -> Self {
        Self { path: path.display().to_string(), reason: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tidegate-doctor-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn line(ts: f64) -> String {
        format!("{{\"schema\":1,\"ts\":{ts},\"event\":\"wait\"}}\n")
    }

    fn times(reader: &mut Reader) -> Vec<f64> {
        std::iter::from_fn(|| reader.read().unwrap()).map(|record| record.ts).collect()
    }

    #[test]
    fn files_are_merged_by_time() {
        let folder = Folder::new("merge");
        let texts = [[1.0, 4.0, 5.0], [2.0, 3.0, 9.0], [6.0, 7.0, 8.0]];
        let paths: Vec<_> = texts
            .iter()
            .enumerate()
            .map(|(i, times)| folder.file(&i.to_string(), times.map(line).concat()))
            .collect();
        let mut reader = Reader::open(&paths, 100.0).unwrap();
        assert_eq!(times(&mut reader), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        assert_eq!(reader.bytes_read(), reader.bytes_in_all());
    }

    #[test]
    fn broken_lines_are_counted_and_passed() {
        let folder = Folder::new("broken");
        let mut text = line(1.0).into_bytes();
        text.extend_from_slice(b"\n\xff\xfe\n{\"schema\":9,\"ts\":2,\"event\":\"call\"}\n");
        text.extend_from_slice(&vec![b'x'; 5 * MOST_BUFFER]);
        text.extend_from_slice(format!("\n{}{}", line(2.0), &line(3.0)[..20]).as_bytes());
        let mut reader = Reader::open(&[folder.file("a", text)], 100.0).unwrap();
        assert_eq!(times(&mut reader), [1.0, 2.0]);
        let count = reader.counts().next().unwrap();
        assert_eq!((count.lines, count.records, count.broken, count.newer), (7, 2, 3, 1));
        assert_eq!((count.first_ts, count.last_ts), (Some(1.0), Some(2.0)));
    }

    #[test]
    fn a_line_kept_in_part_is_broken_even_where_the_part_is_a_record() {
        let folder = Folder::new("long");
        let mut text = line(1.0).trim_end().to_owned();
        text.push_str(&" ".repeat(LONGEST_LINE));
        text.push_str("x\n");
        let mut reader = Reader::open(&[folder.file("a", text)], 100.0).unwrap();
        assert_eq!(times(&mut reader), [0.0; 0]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let folder = Folder::new("missing");
        for path in [folder.0.join("none"), folder.0.clone()] {
            let error = Reader::open(std::slice::from_ref(&path), 1.0).unwrap_err().to_string();
            assert!(error.starts_with(&path.display().to_string()), "{error}");
        }
    }
}
