//! The file of JSON lines: shared by several processes, whole after a crash, and of bounded size.
//!
//! Each record is one write to a file opened for appending, so that a process that dies loses no line that it had
//! written. A line that a full disk or a power failure cut short is ended before the next one: readers skip what
//! they cannot read and lose that line alone. A line of which another process has written a part looks the same for
//! a moment, so that it is looked at once more before it is ended.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::lock::Mutex;

use crate::error::ConfigError;
use crate::event::Event;

/// When a file is full, and what is kept of the full ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// A line that would make the file longer goes to the next one.
    pub max_bytes: u64,
    /// Full files that are kept: `log.jsonl.1` is the last, higher numbers are older.
    pub backups: u32,
}

impl Rotation {
    /// Smaller files would be renamed all the time.
    const LEAST: u64 = 4096;

    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.max_bytes < Self::LEAST {
            return Err(ConfigError::new("log_max_bytes", self.max_bytes, "must be 4,096 or more"));
        }
        if !(1..=1000).contains(&self.backups) {
            return Err(ConfigError::new("log_backups", self.backups, "must be between 1 and 1,000"));
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    rotation: Option<Rotation>,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// As far as this process knows; others may have written since.
    length: u64,
    /// Own bytes since others were last looked for.
    unchecked: u64,
    /// The last line may have no end.
    cut: bool,
}

impl Open {
    fn new(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
        let length = file.metadata()?.len();
        let cut = Self::is_cut(&file)?;
        Ok(Self { file, length, unchecked: 0, cut })
    }

    fn is_cut(mut file: &File) -> io::Result<bool> {
        let about = file.metadata()?;
        // Pipes, terminals and the like have no end to look at.
        if !about.is_file() || about.len() == 0 {
            return Ok(false);
        }
        let mut last = [0];
        file.seek(SeekFrom::Start(about.len() - 1))?;
        let read = file.read(&mut last)?;
        Ok(read == 1 && last != *b"\n")
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.cut && Self::is_cut(&self.file)? {
            self.file.write_all(b"\n")?;
        }
        self.cut = true;
        self.file.write_all(line)?;
        self.cut = false;
        self.length += line.len() as u64;
        self.unchecked += line.len() as u64;
        Ok(())
    }
}

impl LogFile {
    pub fn open(path: &Path, rotation: Option<Rotation>) -> Result<Self, ConfigError> {
        if let Some(rotation) = &rotation {
            rotation.validate()?;
        }
        let open = Open::new(path).map_err(|error| {
            ConfigError::new(
                "log_file",
                path.display(),
                format!("must be a file that can be created or appended to ({error})"),
            )
        })?;
        Ok(Self { path: path.to_owned(), rotation, open: Mutex::new(open) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write(&self, event: &Event) -> io::Result<()> {
        let mut line = event.to_json();
        line.push(b'\n');
        let mut open = self.open.lock();
        let rotated = match self.rotation {
            Some(rotation) => self.make_room(&mut open, rotation, line.len() as u64),
            None => Ok(()),
        };
        // A file that could not be renamed grows: a record is worth more than its bound.
        open.write(&line).and(rotated)
    }

    fn make_room(&self, open: &mut Open, rotation: Rotation, more: u64) -> io::Result<()> {
        /// How much this process may write before it looks whether another has begun a new file.
        const LOOK_AFTER: u64 = 64 << 10;
        let full = open.length > 0 && open.length + more > rotation.max_bytes;
        if !full && open.unchecked < LOOK_AFTER.min(rotation.max_bytes / 4) {
            return Ok(());
        }
        let lock = self.lock()?;
        if self.is_current(&open.file)? {
            open.length = open.file.metadata()?.len();
            open.unchecked = 0;
            if open.length + more <= rotation.max_bytes {
                return Ok(());
            }
            self.shift(rotation)?;
        }
        *open = Open::new(&self.path)?;
        drop(lock);
        Ok(())
    }

    /// Held by whoever renames. The file beside the log stays: removing it would let two in.
    fn lock(&self) -> io::Result<File> {
        let lock = OpenOptions::new().create(true).append(true).open(self.numbered("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    #[cfg(unix)]
    fn is_current(&self, file: &File) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let own = file.metadata()?;
        match fs::metadata(&self.path) {
            Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Where files cannot be renamed while others have them open, nobody else has.
    #[cfg(not(unix))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the same signature everywhere")]
    fn is_current(&self, _: &File) -> io::Result<bool> {
        Ok(true)
    }

    fn shift(&self, rotation: Rotation) -> io::Result<()> {
        for number in (1..rotation.backups).rev() {
            match fs::rename(self.numbered(number), self.numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, self.numbered(1))
    }

    fn numbered(&self, suffix: impl std::fmt::Display) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(format!(".{suffix}"));
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Digest, Facts, Kind, SCHEMA, SpanId, TraceId};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tidegate-log-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn log(&self) -> PathBuf {
            self.0.join("log.jsonl")
        }

        /// Lines that are JSON, by file.
        fn lines(&self) -> Vec<(String, usize)> {
            let mut files: Vec<_> = fs::read_dir(&self.0)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| !path.to_string_lossy().ends_with(".lock"))
                .map(|path| {
                    let text = fs::read_to_string(&path).unwrap();
                    let whole = |line: &&str| serde_json::from_str::<serde_json::Value>(line).is_ok();
                    let name = path.file_name().unwrap().to_string_lossy().into_owned();
                    (name, text.lines().filter(whole).count())
                })
                .collect();
            files.sort();
            files
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn event() -> Event {
        Event {
            schema: SCHEMA,
            ts: 1.5,
            event: Kind::Wait,
            gate: Digest(1),
            trace_id: TraceId::parse(&"a".repeat(32)).unwrap(),
            span_id: SpanId::parse(&"b".repeat(16)).unwrap(),
            parent_span_id: None,
            origin: "https://a.test".into(),
            model: "m".into(),
            facts: Facts::default(),
            tags: None,
        }
    }

    #[test]
    fn two_writers_of_one_file_lose_nothing() {
        let folder = Folder::new("two");
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let log = LogFile::open(&folder.log(), None).unwrap();
                    for _ in 0..500 {
                        log.write(&event()).unwrap();
                    }
                });
            }
        });
        assert_eq!(folder.lines(), [(String::from("log.jsonl"), 1000)]);
    }

    #[test]
    fn a_full_file_is_renamed_and_the_oldest_let_go() {
        let folder = Folder::new("full");
        let line = event().to_json().len() + 1;
        let per_file = 4096 / line;
        let log = LogFile::open(&folder.log(), Some(Rotation { max_bytes: 4096, backups: 2 })).unwrap();
        for _ in 0..=per_file * 4 {
            log.write(&event()).unwrap();
        }
        let named = |name: &str, lines| (name.to_owned(), lines);
        assert_eq!(
            folder.lines(),
            [named("log.jsonl", 1), named("log.jsonl.1", per_file), named("log.jsonl.2", per_file)]
        );
    }

    #[test]
    fn writers_that_rotate_one_file_lose_nothing() {
        let folder = Folder::new("rotate");
        let rotation = Some(Rotation { max_bytes: 20_000, backups: 1000 });
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let log = LogFile::open(&folder.log(), rotation).unwrap();
                    for _ in 0..1000 {
                        log.write(&event()).unwrap();
                    }
                });
            }
        });
        let files = folder.lines();
        assert_eq!(files.iter().map(|file| file.1).sum::<usize>(), 4000);
        assert!(files.len() > 20, "{files:?}");
        for entry in fs::read_dir(&folder.0).unwrap() {
            let length = entry.unwrap().metadata().unwrap().len();
            assert!(
                length <= 20_000 + 4 * 5_000,
                "each may have written a quarter before it looked: {length}"
            );
        }
    }

    #[test]
    fn a_line_cut_short_costs_no_other() {
        let folder = Folder::new("torn");
        fs::write(folder.log(), b"{\"schema\":1}\n{\"sche").unwrap();
        let log = LogFile::open(&folder.log(), None).unwrap();
        log.write(&event()).unwrap();
        log.write(&event()).unwrap();
        let text = fs::read_to_string(folder.log()).unwrap();
        assert_eq!(text.lines().nth(1), Some("{\"sche"));
        assert_eq!(folder.lines(), [(String::from("log.jsonl"), 3)]);
    }

    #[test]
    fn a_line_that_another_process_is_writing_is_left_to_it() {
        let folder = Folder::new("writing");
        let mut line = event().to_json();
        line.push(b'\n');
        let mut other = OpenOptions::new().create(true).append(true).open(folder.log()).unwrap();
        let (begun, rest) = line.split_at(20);
        other.write_all(begun).unwrap();
        let log = LogFile::open(&folder.log(), None).unwrap();
        other.write_all(rest).unwrap();
        log.write(&event()).unwrap();
        assert_eq!(fs::read(folder.log()).unwrap(), line.repeat(2));
    }

    #[test]
    fn a_line_cut_by_another_meanwhile_costs_no_other() {
        let folder = Folder::new("cut");
        fs::write(folder.log(), b"{\"schema\":1}\n{\"sche").unwrap();
        let log = LogFile::open(&folder.log(), None).unwrap();
        let mut other = OpenOptions::new().append(true).open(folder.log()).unwrap();
        other.write_all(b"\n{\"cut\":").unwrap();
        log.write(&event()).unwrap();
        assert_eq!(folder.lines(), [(String::from("log.jsonl"), 2)]);
    }

    #[test]
    #[cfg(unix)]
    fn what_is_no_file_can_be_written_to() {
        let log = LogFile::open(Path::new("/dev/null"), None).unwrap();
        log.write(&event()).unwrap();
        log.write(&event()).unwrap();
    }

    #[test]
    fn wrong_settings_are_named() {
        let folder = Folder::new("wrong");
        for (rotation, field) in [
            (Rotation { max_bytes: 100, backups: 1 }, "log_max_bytes"),
            (Rotation { max_bytes: 4096, backups: 0 }, "log_backups"),
        ] {
            assert_eq!(LogFile::open(&folder.log(), Some(rotation)).unwrap_err().field, field);
        }
        assert_eq!(LogFile::open(&folder.0.join("no/log"), None).unwrap_err().field, "log_file");
    }
}
