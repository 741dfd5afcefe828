//! Connections: one per store, shared by everybody, made anew when it breaks.

use std::fmt::Write as _;
use std::time::Duration;

use crate::lock::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, Pipeline, RedisError, RedisFuture, TlsMode, Value,
};
use url::Url;

use crate::error::ConfigError;

/// One answer; longer than any healthy server takes, and short enough for another attempt on a new connection while
/// a caller waits.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

#[allow(clippy::large_enum_variant, reason = "one for each store, which lives as long as the process")]
enum Server {
    Single(Client),
    Cluster(Box<ClusterClient>),
    /// Asks the sentinels who the primary is; its client caches what it learns.
    Sentinel(Box<tokio::sync::Mutex<SentinelClient>>),
}

/// A connection. Clones share it.
#[derive(Clone)]
pub(super) enum Link {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(connection) => connection.req_packed_command(command),
            Self::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Single(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}

#[derive(Clone)]
pub(super) struct Numbered {
    pub(super) link: Link,
    pub(super) serial: u64,
}

pub(super) struct Links {
    server: Server,
    shown: String,
    current: Mutex<(u64, Option<Link>)>,
    /// Held by whoever connects, so that the others wait for the one connection.
    connecting: tokio::sync::Mutex<()>,
}

impl Links {
    pub(super) fn open(url: &str) -> Result<Self, ConfigError> {
        let address = Address::parse(url)?;
        let server = address.server(url).map_err(|error| {
            let problem = error.detail().map_or_else(|| error.category().to_owned(), ToOwned::to_owned);
            refused(&address.shown(), &format!("must be a Redis URL that can be used ({problem})"))
        })?;
        Ok(Self {
            server,
            shown: address.shown(),
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        })
    }

    /// Where it leads, without credentials.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) const fn is_cluster(&self) -> bool {
        matches!(self.server, Server::Cluster(_))
    }

    pub(super) async fn get(&self) -> Result<Numbered, RedisError> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let _turn = self.connecting.lock().await;
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let link = self.connect().await?;
        let mut current = self.current.lock();
        current.0 += 1;
        current.1 = Some(link.clone());
        Ok(Numbered { link, serial: current.0 })
    }

    fn known(&self) -> Option<Numbered> {
        let current = self.current.lock();
        current.1.clone().map(|link| Numbered { link, serial: current.0 })
    }

    /// Forgets the connection, unless it is a newer one already.
    pub(super) fn drop_link(&self, serial: u64) {
        let mut current = self.current.lock();
        if current.0 == serial {
            current.1 = None;
        }
    }

    async fn connect(&self) -> Result<Link, RedisError> {
        // Whoever asks sets the time for an answer: a question needs no second timer.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        Ok(match &self.server {
            Server::Single(client) => {
                Link::Single(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Server::Cluster(client) => Link::Cluster(client.get_async_connection().await?),
            Server::Sentinel(client) => {
                Link::Single(client.lock().await.get_async_connection_with_config(&config).await?)
            }
        })
    }
}

/// A URL taken apart.
struct Address {
    scheme: String,
    tls: bool,
    user: Option<String>,
    password: Option<String>,
    hosts: Vec<(String, u16)>,
    /// Parts of the path.
    path: Vec<String>,
}

impl Address {
    fn parse(url: &str) -> Result<Self, ConfigError> {
        const RULE: &str = "must name a host, such as redis://localhost:6379/0";
        let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(c, h)| (Some(c), h));
        let (user, password) = match credentials.map(|text| text.split_once(':').unwrap_or((text, ""))) {
            Some((user, password)) => (Some(decoded(user)), Some(decoded(password))),
            None => (None, None),
        };
        let default = if scheme.ends_with("sentinel") { SENTINEL_PORT } else { PORT };
        let hosts = hosts.split(',').map(|host| parse_host(host, default)).collect::<Option<Vec<_>>>();
        let path = path.split('?').next().unwrap_or_default();
        Ok(Self {
            scheme: scheme.to_owned(),
            tls: scheme.starts_with("rediss"),
            user: user.filter(|user| !user.is_empty()),
            password: password.filter(|password| !password.is_empty()),
            hosts: hosts.ok_or_else(|| refused(&format!("{scheme}://…"), RULE))?,
            path: path.split('/').filter(|part| !part.is_empty()).map(decoded).collect(),
        })
    }

    fn shown(&self) -> String {
        let mut shown = format!("{}://", self.scheme);
        for (index, (host, port)) in self.hosts.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let _ = write!(shown, "{comma}{host}:{port}");
        }
        shown
    }

    fn server(&self, url: &str) -> Result<Server, RedisError> {
        if self.scheme.ends_with("+cluster") {
            self.cluster()
        } else if self.scheme.ends_with("+sentinel") {
            self.sentinel()
        } else {
            Client::open(url).map(Server::Single)
        }
    }

    fn addresses(&self) -> impl Iterator<Item = ConnectionAddr> {
        self.hosts.iter().map(|(host, port)| {
            // The resolver takes an IPv6 address without the brackets that it has in a URL.
            let (host, port) = (host.trim_matches(['[', ']']).to_owned(), *port);
            if self.tls {
                ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
            } else {
                ConnectionAddr::Tcp(host, port)
            }
        })
    }

    fn cluster(&self) -> Result<Server, RedisError> {
        if !self.path.is_empty() {
            return Err(invalid("a cluster has one database: leave out what follows its hosts"));
        }
        let scheme = if self.tls { "rediss" } else { "redis" };
        let nodes = self.hosts.iter().map(|(host, port)| format!("{scheme}://{host}:{port}"));
        let mut builder = ClusterClientBuilder::new(nodes)
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(RESPONSE_TIMEOUT);
        if let Some(user) = &self.user {
            builder = builder.username(user);
        }
        if let Some(password) = &self.password {
            builder = builder.password(password);
        }
        builder.build().map(|client| Server::Cluster(Box::new(client)))
    }

    fn sentinel(&self) -> Result<Server, RedisError> {
        let name = self.path.first().map(String::as_str).unwrap_or_default();
        if name.is_empty() {
            return Err(invalid(
                "a sentinel URL ends with the name of the primary: redis+sentinel://host:port/name",
            ));
        }
        let mut builder = SentinelClientBuilder::new(self.addresses(), name, SentinelServerType::Master)?;
        if let Some(db) = self.path.get(1) {
            let number = db.parse::<u16>().ok().filter(|_| self.path.len() == 2);
            let number =
                number.ok_or_else(|| invalid("what follows the name is the database, a number: …/name/0"))?;
            builder = builder.set_client_to_redis_db(number.into());
        }
        if let Some(user) = &self.user {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = &self.password {
            builder = builder.set_client_to_redis_password(password);
        }
        if self.tls {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        }
        builder.build().map(|client| Server::Sentinel(Box::new(tokio::sync::Mutex::new(client))))
    }
}

fn invalid(rule: &'static str) -> RedisError {
    (redis::ErrorKind::InvalidClientConfig, "", rule.to_owned()).into()
}

fn refused(shown: &str, rule: &str) -> ConfigError {
    ConfigError::new("store", shown, rule.to_owned())
}

fn parse_host(text: &str, default: u16) -> Option<(String, u16)> {
    let url = Url::parse(&format!("http://{text}")).ok()?;
    let host = url.host_str()?.to_owned();
    // Port 80 is the scheme's own, which the parser leaves out.
    let port = if text.ends_with(":80") { 80 } else { url.port().unwrap_or(default) };
    (url.path() == "/" && url.query().is_none()).then_some((host, port))
}

fn decoded(text: &str) -> String {
    url::form_urlencoded::parse(format!("a={}", text.replace('+', "%2B")).as_bytes())
        .next()
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}
