//! A client that hides nothing: bytes on a socket, and how the connection ended.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::clock;
use tidegate::mock::MockServer;

/// Ten times what any test needs.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By length or by the last chunk; the connection is open.
    Complete,
    Eof,
    Reset,
    /// No byte for as long as the test was ready to wait.
    Silence,
}

#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Sizes of the transfer chunks.
    pub(crate) chunks: Vec<usize>,
    pub(crate) end: End,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The data of server-sent events; JSON where it is JSON.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.text().lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| data.into())).collect()
    }
}

pub(crate) struct Client {
    socket: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    pub(crate) fn new(server: &MockServer) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, unread: Vec::new() }
    }

    pub(crate) fn patience(&self, limit: Duration) {
        self.socket.set_read_timeout(Some(limit)).unwrap();
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) {
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            text = format!("{text}{name}: {value}\r\n");
        }
        self.write(format!("{text}\r\n{body}").as_bytes());
    }

    pub(crate) fn chat(&mut self, body: &Value) -> Seen {
        self.start_chat(body);
        self.answer()
    }

    pub(crate) fn start_chat(&mut self, body: &Value) {
        let mut whole = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in body.as_object().unwrap() {
            whole[name] = value.clone();
        }
        self.send("POST", "/v1/chat/completions", &[], &whole.to_string());
    }

    pub(crate) fn get(&mut self, path: &str) -> Seen {
        self.send("GET", path, &[], "");
        self.answer()
    }

    /// Reads once more; `None` with the reason when there is no more.
    fn more(&mut self) -> Result<(), End> {
        let mut buffer = [0; 8192];
        match self.socket.read(&mut buffer) {
            Ok(0) => Err(End::Eof),
            Ok(count) => {
                self.unread.extend_from_slice(&buffer[..count]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(End::Reset),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(End::Silence)
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn line(&mut self) -> Result<String, End> {
        loop {
            if let Some(at) = self.unread.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..at + 2).collect();
                return Ok(String::from_utf8(line[..at].to_vec()).unwrap());
            }
            self.more()?;
        }
    }

    fn exactly(&mut self, count: usize, body: &mut Vec<u8>) -> Result<(), End> {
        let mut missing = count;
        loop {
            let ready = missing.min(self.unread.len());
            body.extend(self.unread.drain(..ready));
            missing -= ready;
            if missing == 0 {
                return Ok(());
            }
            self.more()?;
        }
    }

    /// Status and headers; an error if the connection ended before them.
    pub(crate) fn head(&mut self) -> Result<Seen, End> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).unwrap().parse().unwrap();
        let mut seen =
            Seen { status, headers: Vec::new(), body: Vec::new(), chunks: Vec::new(), end: End::Complete };
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { return Ok(seen) };
            seen.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// One transfer chunk into the body; its size, 0 for the last.
    pub(crate) fn chunk(&mut self, body: &mut Vec<u8>) -> Result<usize, End> {
        let size = usize::from_str_radix(&self.line()?, 16).unwrap();
        let outcome = self.exactly(size, body);
        outcome?;
        self.line().map(|_| size)
    }

    fn body(&mut self, seen: &mut Seen) -> Result<(), End> {
        if let Some(length) = seen.header("content-length").map(|value| value.parse().unwrap()) {
            return self.exactly(length, &mut seen.body);
        }
        if seen.header("transfer-encoding").is_some() {
            loop {
                match self.chunk(&mut seen.body)? {
                    0 => return Ok(()),
                    size => seen.chunks.push(size),
                }
            }
        }
        if seen.status == 204 {
            return Ok(());
        }
        loop {
            seen.body.append(&mut self.unread);
            self.more()?;
        }
    }

    /// The whole answer, or as much of it as there was.
    pub(crate) fn answer(&mut self) -> Seen {
        let mut seen = self.head().unwrap();
        if let Err(end) = self.body(&mut seen) {
            seen.end = end;
        }
        seen
    }

    /// How the connection ends if no further byte comes; the bytes that came instead.
    pub(crate) fn end(&mut self) -> (End, Vec<u8>) {
        loop {
            if let Err(end) = self.more() {
                return (end, std::mem::take(&mut self.unread));
            }
        }
    }

    pub(crate) fn leave(self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

pub(crate) fn start(config: &Value) -> MockServer {
    MockServer::start(&config.to_string()).unwrap()
}

pub(crate) fn ledger(server: &MockServer) -> Value {
    serde_json::from_str(&server.ledger()).unwrap()
}

/// Waits until the ledger is as described; the ledger then.
pub(crate) fn until(server: &MockServer, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = clock::now() + PATIENCE;
    loop {
        let seen = ledger(server);
        if holds(&seen) {
            return seen;
        }
        assert!(clock::now() < deadline, "never saw {what}: {seen:#}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}
